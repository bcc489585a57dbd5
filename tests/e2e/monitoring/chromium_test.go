package monitoring

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// browserTime is how long Chromium may take for one command; its start takes longest.
const browserTime = 2 * time.Minute

// browser is a page of a headless Chromium, which is told what to do by the Chrome DevTools
// Protocol, version 1.3: JSON objects that end with a byte 0, by two pipes.
type browser struct {
	t         *testing.T
	to        *os.File
	from      *os.File
	replies   *bufio.Reader
	last      int    // id of the last command
	session   string // of the page
	complains []string
}

// message is a reply (ID is the command's) or an event (Method is its name).
type message struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// browse starts Chromium, which ends with the test, with an empty page.
func browse(t *testing.T) *browser {
	t.Helper()
	program, dir := need.Tool(t, "chromium"), t.TempDir()
	toRead, to := pipe(t)
	from, toWrite := pipe(t)
	cmd := exec.Command(program, "--headless=new", "--remote-debugging-pipe", "--no-sandbox",
		"--user-data-dir="+dir, "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--disable-extensions", "--lang=en", "--window-size=1200,1400", "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+dir, "DBUS_SESSION_BUS_ADDRESS=disabled:")
	cmd.ExtraFiles = []*os.File{toRead, toWrite} // 3 and 4, as the flag has them
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	toRead.Close()
	toWrite.Close()
	b := &browser{t: t, to: to, from: from, replies: bufio.NewReader(from)}
	t.Cleanup(func() {
		b.session = ""
		b.send("Browser.close", nil) // it is killed if that fails
		kill := time.AfterFunc(10*time.Second, func() { cmd.Process.Kill() })
		cmd.Wait()
		kill.Stop()
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true},
		&attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

// resize gives the page a window of a width.
func (b *browser) resize(width int) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 1400,
		"deviceScaleFactor": 1, "mobile": false}, nil)
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func (b *browser) send(method string, params any) error {
	b.last++
	command := map[string]any{"id": b.last, "method": method}
	if params != nil {
		command["params"] = params
	}
	if b.session != "" {
		command["sessionId"] = b.session
	}
	text, err := json.Marshal(command)
	if err == nil {
		_, err = b.to.Write(append(text, 0))
	}
	return err
}

// call waits for the reply to a command, and decodes it into result unless that is nil. It keeps
// what the page has complained of until then.
func (b *browser) call(method string, params, result any) {
	b.t.Helper()
	if err := b.send(method, params); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	b.from.SetReadDeadline(time.Now().Add(browserTime))
	for {
		text, err := b.replies.ReadBytes(0)
		if err != nil {
			b.t.Fatalf("%s: %v", method, err)
		}
		var m message
		if err := json.Unmarshal(text[:len(text)-1], &m); err != nil {
			b.t.Fatalf("%s: %v in %s", method, err, text)
		}
		if slices.Contains([]string{"Runtime.exceptionThrown", "Log.entryAdded"}, m.Method) {
			b.complains = append(b.complains, string(m.Params))
		}
		if m.ID != b.last {
			continue
		}
		if m.Error != nil {
			b.t.Fatalf("%s: %s", method, m.Error)
		}
		if result != nil {
			if err := json.Unmarshal(m.Result, result); err != nil {
				b.t.Fatalf("%s: %v in %s", method, err, m.Result)
			}
		}
		return
	}
}

// value evaluates an expression of JavaScript in the page into v.
func (b *browser) value(expression string, v any) {
	b.t.Helper()
	var reply struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true},
		&reply)
	if reply.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, reply.ExceptionDetails)
	}
	if err := json.Unmarshal(reply.Result.Value, v); err != nil {
		b.t.Fatalf("%s: %v in %s", expression, err, reply.Result.Value)
	}
}

// await waits until an expression is true.
func (b *browser) await(expression string) {
	b.t.Helper()
	for deadline, is := time.Now().Add(browserTime), false; ; time.Sleep(20 * time.Millisecond) {
		if b.value("!!("+expression+")", &is); is {
			return
		}
		if time.Now().After(deadline) {
			var text string
			b.value("document.body.innerText", &text)
			b.t.Fatalf("not so: %s\n%s", expression, text)
		}
	}
}

// press presses a key and lets it go.
func (b *browser) press(key string, code int, text string) {
	b.t.Helper()
	params := map[string]any{"type": "keyDown", "key": key, "code": key, "text": text,
		"windowsVirtualKeyCode": code}
	b.call("Input.dispatchKeyEvent", params, nil)
	params["type"], params["text"] = "keyUp", ""
	b.call("Input.dispatchKeyEvent", params, nil)
}

// scheme has the page think that its reader prefers light or dark.
func (b *browser) scheme(name string) {
	b.t.Helper()
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{
		{"name": "prefers-color-scheme", "value": name}}}, nil)
	var is bool
	if b.value(fmt.Sprintf("matchMedia('(prefers-color-scheme: %s)').matches", name), &is); !is {
		b.t.Fatalf("the page is not %s", name)
	}
}

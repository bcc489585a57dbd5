package httpd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// serve starts a server on a loopback socket and ends it with the test.
func serve(t testing.TB, cfg Config) (s *Server, url string, client *http.Client) {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	tr := &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return s, "http://" + ln.Addr().String(),
		&http.Client{Transport: tr, CheckRedirect: func(*http.Request,
			[]*http.Request) error {
			return http.ErrUseLastResponse
		}}
}

func get(t testing.TB, c *http.Client, method, url string,
	header ...string) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, b
}

func TestPages(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	for name, text := range map[string]string{"root/a.txt": "0123456789",
		"root/sub/index.html": "<p>hi</p>", "secret": "no"} {
		p := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755),
			os.WriteFile(p, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../secret", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	_, url, c := serve(t, Config{Root: root, MaxConns: 7, DebugEndpoints: true,
		Status: func() any {
			return map[string]any{"slice": map[string]int{"rx_packets": 7},
				"x": "<b>"}
		}})
	for _, tc := range []struct {
		name, method, path string
		header             []string
		status             int
		body               string // exact, or a part when it starts with ~
	}{
		{"file", "GET", "/a.txt", nil, 200, "0123456789"},
		{"head", "HEAD", "/a.txt", nil, 200, ""},
		{"range", "GET", "/a.txt", []string{"Range", "bytes=2-4"}, 206, "234"},
		{"suffix range", "GET", "/a.txt", []string{"Range", "bytes=-3"}, 206, "789"},
		{"range beyond", "GET", "/a.txt", []string{"Range", "bytes=10-"}, 416, "~"},
		{"index", "GET", "/sub/", nil, 200, "<p>hi</p>"},
		{"missing", "GET", "/b.txt", nil, 404, "~"},
		{"dot dot", "GET", "/../secret", nil, 307, "~"},
		{"dot dot, hidden", "GET", "/sub/%2e%2e/%2e%2e/secret", nil, 404, "~"},
		{"symbolic link out", "GET", "/link", nil, 404, "~"},
		{"post to file", "POST", "/a.txt", nil, 405, "~"},
		{"health", "GET", "/-/healthz", nil, 200, "ok\nconnections: 1 of 7\nroot directory: ok\n"},
		{"get echo", "GET", "/-/echo", nil, 405, "~"},
		{"unknown page", "GET", "/-/nothing", nil, 404, "~"},
		{"bytes 0", "GET", "/-/bytes/0", nil, 200, ""},
		{"bytes negative", "GET", "/-/bytes/-1", nil, 400, "~"},
		{"bytes not a number", "GET", "/-/bytes/1k", nil, 400, "~"},
		{"bytes beyond int64", "GET", "/-/bytes/9223372036854775808", nil, 400, "~"},
		{"bytes largest, by head", "HEAD", "/-/bytes/268435456", nil, 200, ""},
		{"bytes beyond the largest", "GET", "/-/bytes/268435457", nil, 400,
			"~at most 268435456 bytes"},
		{"status", "GET", "/-/status", nil, 200, "~<td>status.slice.rx_packets</td><td>7</td>"},
		{"status escapes", "GET", "/-/status", nil, 200, "~<td>&lt;b&gt;</td>"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			resp, body := get(t, c, tc.method, url+tc.path, tc.header...)
			if resp.StatusCode != tc.status {
				t.Errorf("status %d, want %d", resp.StatusCode, tc.status)
			}
			if part, ok := strings.CutPrefix(tc.body, "~"); ok &&
				!strings.Contains(string(body), part) || !ok && string(body) != tc.body {
				t.Errorf("body %q, want %q", body, tc.body)
			}
			if strings.Contains(string(body), "no\n") || string(body) == "no" {
				t.Error("a file outside the root came out")
			}
		})
	}
}

func TestBytes(t *testing.T) {
	_, url, c := serve(t, Config{DebugEndpoints: true})
	want := make([]byte, 100003)
	for i := range want { // byte by byte, so that every alignment of FillPattern is tested
		FillPattern(want[i:i+1], int64(i))
	}
	if _, got := get(t, c, "GET", url+"/-/bytes/100003"); !bytes.Equal(got, want) {
		t.Error("whole pattern differs")
	}
	for _, from := range []int{1, 7, 8, 9, 65535, 100002} {
		resp, got := get(t, c, "GET", fmt.Sprint(url, "/-/bytes/100003"), "Range",
			fmt.Sprintf("bytes=%d-", from))
		if resp.StatusCode != 206 || !bytes.Equal(got, want[from:]) {
			t.Errorf("pattern from byte %d differs", from)
		}
	}
}

func TestEcho(t *testing.T) {
	s, url, c := serve(t, Config{DebugEndpoints: true, MaxBody: 3 << 20})
	data := make([]byte, 3<<20+1)
	rng := rand.NewChaCha8([32]byte{1})
	rng.Read(data)
	post := func(body io.Reader) (int, []byte, error) {
		resp, err := c.Post(url+"/-/echo", "application/x-any", body)
		if err != nil {
			return 0, nil, err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return resp.StatusCode, b, err
	}
	for _, n := range []int{0, 1, 1024, 1 << 20, 3 << 20} {
		for _, chunked := range []bool{false, true} {
			var body io.Reader = bytes.NewReader(data[:n])
			if chunked {
				body = io.MultiReader(body)
			}
			if status, got, err := post(body); err != nil || status != 200 ||
				!bytes.Equal(got, data[:n]) {
				t.Errorf("%d bytes (chunked %v): status %d, %d bytes back, %v", n,
					chunked, status, len(got), err)
			}
		}
	}
	if status, _, err := post(bytes.NewReader(data)); status != 413 && err == nil {
		t.Errorf("over-long body: status %d", status)
	}
	if _, got, err := post(io.MultiReader(bytes.NewReader(data))); err == nil &&
		len(got) == len(data) {
		t.Error("over-long chunked body came back whole")
	}
	if c := s.Counters(); c.BytesIn < 4<<20 || c.Answers["2xx"] < 10 {
		t.Errorf("counters %+v", c)
	}
}

func TestManyClients(t *testing.T) {
	s, url, c := serve(t, Config{DebugEndpoints: true})
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 10 {
				if resp, b := get(t, c, "GET", url+"/-/bytes/1024"); resp.StatusCode != 200 ||
					len(b) != 1024 {
					t.Errorf("status %d, %d bytes", resp.StatusCode, len(b))
				}
			}
		})
	}
	wg.Wait()
	for s.Counters().InFlight > 0 { // a client may have its answer before the handler has returned
		runtime.Gosched()
	}
	_, b := get(t, c, "GET", url+"/-/status.json")
	var st struct{ Server Counters }
	if err := json.Unmarshal(b, &st); err != nil {
		t.Fatal(err)
	}
	if st.Server.Requests != 641 || st.Server.InFlight != 1 || st.Server.BytesOut != 640*1024 ||
		st.Server.Connections < 1 {
		t.Errorf("counters %+v", st.Server)
	}
}

// hold is a Status func that keeps its request in progress until released.
func hold(t *testing.T) (status func() any, entered <-chan struct{}, release func()) {
	in, out := make(chan struct{}, 1), make(chan struct{})
	return func() any { in <- struct{}{}; <-out; return nil }, in,
		sync.OnceFunc(func() { close(out) })
}

func TestShutdownLetsRequestsFinish(t *testing.T) {
	status, entered, release := hold(t)
	defer release()
	s, url, c := serve(t, Config{Root: t.TempDir(), DebugEndpoints: true, Status: status})
	answer := make(chan int, 1)
	go func() {
		resp, _ := get(t, c, "GET", url+"/-/status.json")
		answer <- resp.StatusCode
	}()
	<-entered
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(context.Background()) }()
	for { // until the listener is closed: from here on the server is draining
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			break
		}
		conn.Close()
	}
	release()
	if got := <-answer; got != 200 {
		t.Errorf("request under way got %d", got)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := c.Get(url); err == nil {
		t.Error("still answering after Shutdown")
	}
}

func TestShutdownGivesUpWithItsContext(t *testing.T) {
	status, entered, release := hold(t)
	s, url, c := serve(t, Config{DebugEndpoints: true, Status: status})
	t.Cleanup(release)
	failed := make(chan error, 1)
	go func() {
		resp, err := c.Get(url + "/-/status.json")
		if err == nil {
			_, err = io.ReadAll(resp.Body)
		}
		failed <- err
	}()
	<-entered
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown: %v", err)
	}
	if err := <-failed; err == nil {
		t.Error("request survived the cut")
	}
}

func TestLifecycle(t *testing.T) {
	s, err := New(Config{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { s.Close(); s.Shutdown(context.Background()); s.Counters() })
	}
	wg.Wait()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(ln); err != nil {
		t.Errorf("Serve after Close: %v", err)
	}
	if _, err := New(Config{Root: filepath.Join(t.TempDir(), "absent")}); !errors.Is(err,
		os.ErrNotExist) {
		t.Errorf("absent root: %v", err)
	}
	for _, cfg := range []Config{{MaxBody: -1}, {MaxConns: -1}, {MinRate: -1},
		{Grace: -1}, {MinRate: 1, Grace: 1}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("accepted %+v", cfg)
		}
	}
	ln.Close()
	s2, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s2.Serve(ln); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve on a closed listener: %v", err)
	}
}

func BenchmarkRequest1KiB(b *testing.B) {
	_, url, c := serve(b, Config{DebugEndpoints: true})
	b.ReportAllocs()
	for b.Loop() {
		resp, err := c.Get(url + "/-/bytes/1024")
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

// TestShutdownAnswersWhatIsOnItsWay: a connection without a request may send one more after
// Shutdown, and is told that it is the last.
func TestShutdownAnswersWhatIsOnItsWay(t *testing.T) {
	s, url, _ := serve(t, Config{Root: t.TempDir(), DebugEndpoints: true})
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	for _, last := range []bool{false, true} {
		if last {
			defer func(done <-chan error) {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}(shutDown(s))
		}
		fmt.Fprint(conn, "GET /-/bytes/3 HTTP/1.1\r\nHost: h\r\n\r\n")
		resp, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(resp.Body); len(got) != 3 || err != nil || resp.Close != last {
			t.Errorf("%d bytes, %v, connection ends: %v, want %v", len(got), err, resp.Close, last)
		}
	}
}

// shutDown returns once Shutdown has begun.
func shutDown(s *Server) <-chan error {
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(context.Background()) }()
	for !s.draining.Load() {
		runtime.Gosched()
	}
	return done
}

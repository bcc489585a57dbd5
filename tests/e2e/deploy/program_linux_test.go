package deploy

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// patience is how long a test waits for what takes milliseconds.
const patience = time.Minute

// program builds the program as "make build" does.
func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rdma-netstack")
	build := exec.Command(need.Tool(t, "go"), "build", "-buildvcs=false", "-trimpath", "-o", path,
		"./cmd/rdma-netstack")
	build.Dir = "../../.."
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// hosts are two network namespaces. connect makes the cable between them.
type hosts struct{ server, client *lab.Net }

func newHosts(t *testing.T) hosts {
	t.Helper()
	need.Root(t)
	need.NetNS(t)
	var all [2]*lab.Net
	for i, name := range []string{"server", "client"} {
		n, err := lab.New(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		all[i] = n
	}
	h := hosts{all[0], all[1]}
	h.connect(t)
	return h
}

func (h hosts) connect(t *testing.T) {
	t.Helper()
	err := lab.Cable(h.server, "veth0", h.client, "veth0")
	for n, address := range map[*lab.Net]string{
		h.server: "192.0.2.2/24", h.client: "192.0.2.1/24"} {
		if err == nil {
			err = n.Do(func() error {
				return lab.Up("veth0",
					lab.Setup{Addresses: []netip.Prefix{netip.MustParsePrefix(address)}})
			})
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// get fetches a page from the client's host, again and again until the server answers.
func (h hosts) get(t *testing.T, url string) string {
	t.Helper()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return h.client.DialContext(ctx, network, address)
		}}}
	var last error
	for end := time.Now().Add(patience); time.Now().Before(end); {
		resp, err := client.Get(url)
		if err == nil {
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err == nil {
				return string(body)
			}
		}
		last = err
	}
	t.Fatalf("no answer: %v", last)
	return ""
}

// server is a program that runs.
type server struct {
	*exec.Cmd
	stdout, stderr output
	ended          chan struct{}
	err            error // how it ended; readable once ended is closed
}

// output is what a program has printed so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan bool // of size 1
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.more <- true:
	default:
	}
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// start starts a server on the host of servers and waits for its line.
func (h hosts) start(t *testing.T, cmd *exec.Cmd) *server {
	t.Helper()
	s := &server{Cmd: cmd, ended: make(chan struct{})}
	s.stdout.more, s.stderr.more = make(chan bool, 1), make(chan bool, 1)
	cmd.Stdout, cmd.Stderr = &s.stdout, &s.stderr
	cmd.WaitDelay = patience
	if err := h.server.Start(cmd); err != nil {
		t.Fatal(err)
	}
	go func() {
		s.err = cmd.Wait()
		close(s.ended)
	}()
	t.Cleanup(func() { cmd.Process.Kill(); <-s.ended })
	end := time.After(patience)
	for !strings.Contains(s.stdout.String(), `"serving"`) {
		select {
		case <-s.stdout.more:
		case <-s.ended:
			t.Fatalf("%v: %s", s.err, &s.stderr)
		case <-end:
			t.Fatalf("it does not serve: %s", &s.stderr)
		}
	}
	return s
}

// stop has the server end in order.
func (s *server) stop(t *testing.T) {
	t.Helper()
	if err := s.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if <-s.ended; s.err != nil {
		t.Errorf("the server: %v: %s", s.err, &s.stderr)
	}
}

// status has, of each line of /proc/PID/task/*/status that is asked for, the different values.
func (s *server) status(t *testing.T, names ...string) map[string][]string {
	t.Helper()
	tasks, err := filepath.Glob(filepath.Join("/proc", itoa(s.Process.Pid), "task/*/status"))
	if err != nil || len(tasks) < 3 {
		t.Fatalf("%d threads: %v", len(tasks), err)
	}
	all := map[string][]string{}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
			for _, want := range names {
				if name == want && !contains(all[name], value) {
					all[name] = append(all[name], value)
				}
			}
		}
	}
	return all
}

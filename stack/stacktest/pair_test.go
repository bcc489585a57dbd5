package stacktest_test

import (
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/stacktest"
)

// TestPair fetches a page over each IP version, in parallel tests that have the same addresses.
func TestPair(t *testing.T) {
	for _, url := range []string{"http://192.0.2.1/", "http://[2001:db8::1]/"} {
		t.Run(url, func(t *testing.T) {
			t.Parallel()
			server, client := stacktest.Pair(t)
			if got := fetch(t, server, client, url); got != "hello" {
				t.Errorf("got %q", got)
			}
		})
	}
}

func fetch(t *testing.T, server, client *stack.Stack, url string) string {
	t.Helper()
	ln, err := server.Listen("tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		io.WriteString(w, "hello")
	})}
	go web.Serve(ln)
	defer web.Close()
	c := client.HTTPClient()
	defer c.CloseIdleConnections()
	c.Timeout = 30 * time.Second
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestPairChanges passes both configurations to the function that changes them.
func TestPairChanges(t *testing.T) {
	server, client := stacktest.Pair(t, func(server, client *stack.Config) {
		server.Name,
			client.Name = "one", "other"
	})
	if server.Name() != "one" || client.Name() != "other" {
		t.Errorf("they are %q and %q", server.Name(), client.Name())
	}
}

// TestPairLeavesNothing checks for goroutines as the package's documentation says: in a cleanup
// that was registered first, and after both were closed.
func TestPairLeavesNothing(t *testing.T) {
	for name, test := range map[string]func(t *testing.T){
		"cleanup": func(t *testing.T) {
			t.Cleanup(func() { noneOfStacks(t) })
			server, client := stacktest.Pair(t)
			fetch(t, server, client, "http://192.0.2.1/")
		},
		"closed": func(t *testing.T) {
			defer noneOfStacks(t)
			server, client := stacktest.Pair(t)
			defer server.Close()
			defer client.Close()
			fetch(t, server, client, "http://192.0.2.1/")
		},
	} {
		t.Run(name, test)
	}
}

// noneOfStacks checks for up to 10 s, as leak checkers do: no event reports the end of a goroutine.
func noneOfStacks(t *testing.T) {
	t.Helper()
	var left []string
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); runtime.Gosched() {
		if left = ofStacks(); len(left) == 0 {
			return
		}
	}
	t.Errorf("%d goroutines are left:\n%s", len(left), strings.Join(left, "\n\n"))
}

func ofStacks() (left []string) {
	buf := make([]byte, 1<<20)
	for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")[1:] {
		if strings.Contains(g, "gvisor.dev/gvisor") || strings.Contains(g, "rdma-netstack/stack.") {
			left = append(left, g)
		}
	}
	return left
}

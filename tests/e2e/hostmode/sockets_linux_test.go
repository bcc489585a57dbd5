package hostmode

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// TestSocketsOfBoth has connections of a server's stack and of the kernel: Sockets lists both, and
// says whose they are, until they are closed.
func TestSocketsOfBoth(t *testing.T) {
	w := newWorld(t)
	s := w.start(t, "tcp :8080")
	echoServer(t, w.host, ":9000") // the kernel's own
	other, err := dial(w.outside, hostIP+":9000")
	must(t, err)
	defer other.Close()
	open := map[string]*buffered{}
	want := map[string]bool{} // by the client's end: whether it is the kernel's
	for at, c := range map[string]struct {
		from  *lab.Net
		owner string
	}{hostIP + ":8080": {w.outside, "stack"}, "[" + hostIPv6 + "]:8080": {w.host, "kernel"},
		"127.0.0.1:8080": {w.host, "kernel"}} {
		conn, err := dial(c.from, at)
		must(t, err)
		met, err := meet(conn, c.owner)
		must(t, err)
		open[conn.LocalAddr().String()] = met
		want[conn.LocalAddr().String()] = c.owner == "kernel"
	}
	list := func() map[string]stack.Socket {
		var all []stack.Socket
		must(t, json.Unmarshal([]byte(s.ok("sockets")), &all))
		found := map[string]stack.Socket{}
		for _, so := range all {
			if so.Network == "tcp" && so.State == "ESTAB" {
				found[so.Remote.String()] = so
			}
		}
		return found
	}
	found := list()
	for from, kernel := range want {
		so, there := found[from]
		if !there || so.Kernel != kernel || so.Local.Port() != 8080 || so.TCP == nil ||
			so.TCP.SegsIn == 0 || so.TCP.MSS == 0 {
			t.Errorf("%s: %+v, want one of the kernel's: %v", from, so, kernel)
		}
	}
	if len(found) != len(want) {
		t.Errorf("%d connections, want %d: %+v", len(found), len(want), found)
	}
	for _, c := range open {
		must(t, echo(c, payload(1, 100)))
	}
	for end := time.Now().Add(time.Minute); len(list()) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still there: %+v", list())
		}
	}
	s.stop()
}

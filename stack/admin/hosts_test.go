package admin_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/stack/admin"
)

// TestOnlyHosts: a name that somebody else may have made to resolve to this machine is refused.
func TestOnlyHosts(t *testing.T) {
	h := admin.OnlyHosts(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		"node1.example.")
	for host, want := range map[string]int{
		"127.0.0.1:9100": 200, "127.0.0.1": 200, "[::1]:9100": 200, "[2001:db8::1]": 200,
		"[fe80::1%25eth0]:80": 200, "localhost:9100": 200, "LocalHost.": 200, "": 200,
		"node1.example:9100": 200, "Node1.Example": 200, "node1.example.": 200,
		"evil.example": 421, "evil.example:9100": 421, "127.0.0.1.evil.example": 421,
		"localhost.evil.example:80": 421, "xnode1.example": 421, "node1.example.evil": 421,
		"evil.example:127.0.0.1": 421, "[::1].evil": 421,
	} {
		r, w := httptest.NewRequest("GET", "/status", nil), httptest.NewRecorder()
		r.Host = host
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("Host %q: %d, want %d", host, w.Code, want)
		}
	}
}

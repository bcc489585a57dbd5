package admin_test

import (
	"bytes"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/stack/admin"
	"github.com/rdma-netstack/rdma-netstack/stack/stacktest"
)

// TestProfiles takes each profile for a moment; who may only read gets none.
func TestProfiles(t *testing.T) {
	server, _ := stacktest.Pair(t)
	h := admin.Handler(admin.Config{Stack: server})
	for _, tc := range []struct {
		path  string
		begin string // of the answer
		code  int
	}{
		{"/debug/profile?seconds=0.01", "\x1f\x8b", 200}, // gzip, RFC 1952
		{"/debug/trace?seconds=0.01", "go 1.", 200},
		{"/debug/goroutines", "goroutine profile: total ", 200},
		{"/debug/profile?seconds=x", "seconds=x: want a number up to 600", 400},
		{"/debug/trace?seconds=0", "seconds=0", 400},
		{"/debug/trace?seconds=NaN", "seconds=NaN", 400},
		{"/debug/profile?seconds=1e9", "seconds=1e9", 400},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", tc.path, nil))
		if w.Code != tc.code || !bytes.HasPrefix(w.Body.Bytes(), []byte(tc.begin)) {
			t.Errorf("%s: %d, %.40q", tc.path, w.Code, w.Body)
		}
		w = httptest.NewRecorder()
		admin.ReadOnly(h).ServeHTTP(w, httptest.NewRequest("GET", tc.path, nil))
		if w.Code != 403 || !strings.Contains(w.Body.String(), "unix socket") {
			t.Errorf("%s for everybody: %d, %q", tc.path, w.Code, w.Body)
		}
	}
}

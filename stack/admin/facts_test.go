package admin_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack/admin"
	"github.com/rdma-netstack/rdma-netstack/stack/stacktest"
)

// TestFacts: the facts are those of the stack and the process, and a refused capture is none.
func TestFacts(t *testing.T) {
	server, _ := stacktest.Pair(t)
	h := admin.Handler(admin.Config{Stack: server, Debug: []string{"/debug"}})
	var f, later admin.Facts
	get(t, h, "/facts", &f)
	if f.MTU != 1500 || !f.Segments || f.Processors != runtime.GOMAXPROCS(0) || f.Captures != nil ||
		!slices.Equal(f.Debug, []string{"/debug"}) || f.Time.IsZero() || f.Backend != "link" {
		t.Errorf("%+v", f)
	}
	for range 5 { // each collects garbage
		runtime.GC()
	}
	if get(t, h, "/facts", &later); later.BusySeconds <= f.BusySeconds ||
		later.GCSeconds <= f.GCSeconds || later.GCSeconds > later.BusySeconds {
		t.Errorf("%+v after %+v", later, f)
	}
	if code, body := get(t, h, "/capture", nil); code != http.StatusConflict {
		t.Errorf("a capture of a link in memory: %d %s", code, body)
	}
	if get(t, h, "/facts", &f); f.Captures != nil {
		t.Errorf("%v run", f.Captures)
	}
}

// TestCaptureFacts: a capture is known while it runs.
func TestCaptureFacts(t *testing.T) {
	server, _ := stacktest.Pair(t)
	h := admin.Handler(admin.Config{Stack: server})
	var during admin.Facts
	w := &probing{probe: func() { get(t, h, "/facts", &during) }}
	r := httptest.NewRequest("GET", "/capture", nil)
	before := time.Now()
	h.ServeHTTP(w, r)
	if len(during.Captures) != 1 || during.Captures[0].Before(before.Add(-time.Second)) {
		t.Errorf("%+v", during)
	}
}

// probing is a response that looks when it is written to.
type probing struct {
	bytes.Buffer
	header http.Header
	probe  func()
}

func (p *probing) Header() http.Header {
	if p.header == nil {
		p.header = http.Header{}
	}
	return p.header
}

func (p *probing) WriteHeader(int) { p.probe() }

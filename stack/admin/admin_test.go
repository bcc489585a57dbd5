package admin_test

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/fields"
	"github.com/rdma-netstack/rdma-netstack/stack/stacktest"
)

// get answers a request, and decodes JSON into v unless that is nil.
func get(t *testing.T, h http.Handler, path string, v any) (code int, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	if v != nil {
		if err := json.Unmarshal(w.Body.Bytes(), v); err != nil {
			t.Fatalf("GET %s: %v in %q", path, err, w.Body)
		}
	}
	return w.Code, w.Body.String()
}

func TestHandler(t *testing.T) {
	server, client := stacktest.Pair(t)
	var broken error
	h := admin.Handler(admin.Config{Stack: server, Command: []string{"prog", "--x"}, About: "veth",
		Checks: []admin.Check{{Name: "disk", Run: func() error { return broken }}}})
	var info admin.Info
	if code, _ := get(t, h, "/info", &info); code != 200 || info.PID == 0 || info.MTU != 1500 ||
		info.MAC != server.HardwareAddr().String() || !slices.Equal(info.Addresses,
		server.Addrs()) || info.Command[0] != "prog" || info.Backend != "link" {
		t.Errorf("%d: %+v", code, info)
	}
	if _, err := client.Dial("tcp", stacktest.Used().ServerIP4.Addr().String()+":81"); err == nil {
		t.Fatal("something listens")
	}
	conn, err := server.ListenUDP("udp", nil)
	if err != nil {
		t.Fatal(err)
	}
	var sockets []stack.Socket
	port := conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	if get(t, h, "/sockets", &sockets); len(sockets) != 1 || sockets[0].Local.Port() != port {
		t.Errorf("%+v", sockets)
	}
	var c admin.Counters
	get(t, h, "/stats", &c)
	if n, ok := c.Value("tcp_resets_sent"); !ok || n != 1 {
		t.Errorf("%d resets sent, known: %v; want 1", n, ok)
	}
	if code, body := get(t, h, "/metrics", nil); code != 200 || len(body) < 1000 {
		t.Errorf("metrics: %d, %d bytes", code, len(body))
	}
	var health []admin.Reporter
	if get(t, h, "/health", &health); len(health) != 6 || health[0].Reporter != "tx" ||
		health[0].State != stack.Healthy || !health[0].AutoDump {
		t.Errorf("%+v", health)
	}
	for path, want := range map[string]int{"/health/dump?reporter=tx": 409,
		"/health/dump?reporter=x": 400, "/health/dump": 400} {
		if code, body := get(t, h, path, nil); code != want {
			t.Errorf("%s: %d %q, want %d", path, code, body, want)
		}
	}
	for path, want := range map[string]int{"/health/recover?reporter=tx": 409,
		"/health/recover?reporter=x": 400} {
		for _, h := range []http.Handler{h, admin.ReadOnly(h)} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("POST", path, nil))
			if w.Code != want {
				t.Errorf("POST %s: %d %q, want %d", path, w.Code, w.Body, want)
			}
			want = http.StatusMethodNotAllowed
		}
	}
	if code, _ := get(t, admin.ReadOnly(h), "/health/dump?reporter=tx", nil); code != 403 {
		t.Errorf("a dump for everybody: %d", code)
	}
	if code, _ := get(t, admin.ReadOnly(h), "/info", nil); code != 200 {
		t.Errorf("/info for everybody: %d", code)
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		broken = nil
		if code, body := get(t, h, path, nil); code != 200 || body != "ok\n" {
			t.Errorf("%s: %d %q", path, code, body)
		}
		broken = errors.New("full")
		if code, body := get(t, h, path, nil); code != 503 || body != "failing\ndisk: full\n" {
			t.Errorf("%s with a full disk: %d %q", path, code, body)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("POST", "/stats", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
}

// TestProblems has counters that are not 0, which appear with their meaning in the order of the
// path, and others, which do not appear.
func TestProblems(t *testing.T) {
	got := admin.Problems(admin.Counters{Counters: map[string]uint64{
		"udp_unknown_port_errors": 3, "rx12_stalls": 7, "rx0_stalls": 0, "rx0_packets": 9}})
	if len(got) != 2 || got[0].Name != "rx12_stalls" || got[0].Count != 7 ||
		got[1].Name != "udp_unknown_port_errors" || got[1].Meaning == "" || got[1].Advice == "" {
		t.Errorf("%+v", got)
	}
}

// TestLateOrLost: of segments that were sent again those are told apart that the peer had already.
func TestLateOrLost(t *testing.T) {
	for _, tt := range []struct {
		again, had uint64
		want       string
	}{
		{312, 312, "312 were late, the peer had them already; 0 lost"},
		{312, 318, "312 were late, the peer had them already; 0 lost"},
		{5, 2, "2 were late, the peer had them already; 3 lost"},
		{5, 0, "0 were late, the peer had them already; 5 lost"},
	} {
		got := admin.Problems(admin.Counters{Counters: map[string]uint64{
			"tcp_retransmits": tt.again, "tcp_segments_acked_with_dsack": tt.had}})
		if len(got) != 1 || !strings.Contains(got[0].Meaning, tt.want) {
			t.Errorf("%d sent again, %d reported: %+v", tt.again, tt.had, got)
		}
	}
}

// TestEveryDropIsExplained: what is named as a drop or an error has an explanation.
func TestEveryDropIsExplained(t *testing.T) {
	server, _ := stacktest.Pair(t)
	names := admin.Count(server).Names()
	for direction, queue := range map[string][]any{"rx0_": {dv.RxStats{}, packet.RxStats{}},
		"tx0_": {dv.TxStats{}, packet.TxStats{}}} {
		for _, q := range queue {
			for _, f := range fields.Of(q) {
				names = append(names, direction+f.Name)
			}
		}
	}
	sounds := regexp.MustCompile(`err|drop|bad_|malformed|overflow|invalid|refused|timeout|_shed|` +
		`conflict|lost|stall|out_of|resets$|too_long|_full$|` +
		`^failover_(failed|removed|port_losses|refused|outages|held|.*_milliseconds)$`)
	// what is done, or how long it took, not what goes wrong
	fine := regexp.MustCompile(`^(failover_last_.*|tcp_established_closed|.*_resets_(sent|received)|tcp_resets.*|` +
		`tcp_spurious.*|stack_tcp_resets.*)$`)
	for _, name := range names {
		if sounds.MatchString(name) && !fine.MatchString(name) && !admin.Explained(name) {
			t.Errorf("%s has no explanation", name)
		}
	}
}

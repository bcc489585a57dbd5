package admin_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
	"github.com/rdma-netstack/rdma-netstack/stack/stacktest"
)

// TestStatus: when nothing moves any more, /status has what /metrics and Stats have, and what the
// test did.
func TestStatus(t *testing.T) {
	server, client := stacktest.Pair(t)
	h := admin.Handler(admin.Config{Stack: server, Netdev: func() admin.Traffic {
		return admin.Traffic{Name: "eth7", RxPackets: 1, RxBytes: 2, TxPackets: 3, TxBytes: 4}
	}})
	exchange(t, server, client)
	var got admin.Status
	var body, metrics string
	var want admin.Counters
	for range 100 { // reports of multicast groups are sent again within the first seconds
		before := admin.Count(server)
		got = admin.Status{}
		_, body = get(t, h, "/status", &got)
		_, metrics = get(t, h, "/metrics", nil)
		if want = admin.Count(server); maps.Equal(before.Counters, want.Counters) {
			break
		}
	}
	if !strings.Contains(body, `"shown":[`) {
		t.Errorf("no list of sockets in %s", body)
	}
	if !maps.Equal(got.Stats.Counters, want.Counters) || !got.Stats.Time.Equal(got.Time) {
		t.Errorf("%v, want %v", got.Stats, want)
	}
	st := server.Stats()
	if n := got.Stats.Counters["nics_rx_packets"]; n == 0 || n != st.RxPackets {
		t.Errorf("%d packets, Stats has %d", n, st.RxPackets)
	}
	compared := 0
	for _, m := range regexp.MustCompile(`(?m)^rdma_netstack_events_total\{name="(\w+)"\} (\d+)$`).
		FindAllStringSubmatch(metrics, -1) {
		compared++
		if n, ok := got.Stats.Counters[m[1]]; ok && fmt.Sprint(n) != m[2] {
			t.Errorf("%s is %d, and %s in /metrics", m[1], n, m[2])
		}
	}
	if compared < 50 {
		t.Errorf("%d counters compared", compared)
	}
	if s := got.Sockets; s.TCP["LISTEN"] != 1 || s.TCP["ESTAB"] != 1 || s.UDP != 0 ||
		len(s.Shown) != 2 || s.Shown[0].State != "LISTEN" || s.Shown[1].TCP == nil ||
		s.Shown[1].TCP.BytesReceived != 5 {
		t.Errorf("%+v", s)
	}
	if n := got.Netdev; n == nil || *n != (admin.Traffic{"eth7", 1, 2, 3, 4}) {
		t.Errorf("netdev %+v", n)
	}
	if len(got.Health) != 6 || got.Info.MTU != 1500 || got.Errors == nil {
		t.Errorf("%+v", got)
	}
}

// exchange makes a connection, has it carry 5 bytes each way and lets it stand. Nothing moves when
// it returns: the client has what acknowledges its own bytes, and its acknowledgement has come.
func exchange(t *testing.T, server, client *stack.Stack) {
	t.Helper()
	ln, err := server.Listen("tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := client.Dial("tcp", "192.0.2.1:80")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	accepted, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { accepted.Close() })
	for _, way := range [][2]io.ReadWriter{{conn, accepted}, {accepted, conn}} {
		if _, err := way[0].Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(way[1], make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		for _, s := range server.Sockets() {
			if s.TCP != nil && s.TCP.BytesAcked >= 5 {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("not acknowledged: %+v", server.Sockets())
		}
	}
}

// TestEvents: a viewer gets one Status after the other; there are 32 viewers at most, and who goes
// makes room.
func TestEvents(t *testing.T) {
	server, _ := stacktest.Pair(t)
	web := httptest.NewServer(admin.Handler(admin.Config{Stack: server}))
	t.Cleanup(web.Close) // after the viewers have gone
	view := func() *http.Response {
		t.Helper()
		resp, err := http.Get(web.URL + "/events")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	first := view()
	if kind := first.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Errorf("Content-Type %s", kind)
	}
	lines, before := bufio.NewReader(first.Body), time.Time{}
	for range 2 {
		line, err := lines.ReadString('\n')
		data, isData := strings.CutPrefix(line, "data: ")
		var s admin.Status
		if err := json.Unmarshal([]byte(data), &s); err != nil || !isData {
			t.Fatalf("%q: %v", line, err)
		}
		if end, _ := lines.ReadString('\n'); err != nil || end != "\n" || !s.Time.After(before) ||
			s.Info.MTU != 1500 {
			t.Errorf("%v, %q, at %v after %v", err, end, s.Time, before)
		}
		before = s.Time
	}
	for n := 2; n <= 32; n++ {
		if resp := view(); resp.StatusCode != 200 {
			t.Fatalf("viewer %d: %s", n, resp.Status)
		}
	}
	if resp := view(); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("viewer 33: %s", resp.Status)
	}
	first.Body.Close()
	for deadline := time.Now().Add(time.Minute); view().StatusCode != 200; {
		if time.Now().After(deadline) {
			t.Fatal("no room after a viewer went")
		}
	}
}

// TestPage: the page asks nothing of any other server, all that it links to is there, and its
// policy lets only its own script and style in.
func TestPage(t *testing.T) {
	server, _ := stacktest.Pair(t)
	h := admin.Handler(admin.Config{Stack: server})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	text := w.Body.String()
	if w.Code != 200 || w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	outside := regexp.MustCompile(`//[a-z]|src=|url\(|@import|\bimport\b|fetch\(|innerHTML`)
	own := strings.ReplaceAll(text, `"http://www.w3.org/2000/svg"`, "") // a name, not fetched
	for line := range strings.Lines(own) {
		if code, _, _ := strings.Cut(line, " // "); outside.MatchString(code) {
			t.Errorf("%s", line)
		}
	}
	links := regexp.MustCompile(`href="([^"#]+)"`).FindAllStringSubmatch(text, -1)
	for _, m := range links {
		if m[1] == "data:," {
			continue
		}
		if code, _ := get(t, h, "/"+m[1], nil); code != 200 {
			t.Errorf("%s: %d", m[1], code)
		}
	}
	if len(links) < 5 || strings.Count(text, "<script") != 1 || strings.Count(text, "<style") != 1 {
		t.Errorf("%d links", len(links))
	}
	policy := w.Header().Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "connect-src 'self'",
		"script-src 'sha256-", "style-src 'sha256-", "frame-ancestors 'none'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("no %s in %s", want, policy)
		}
	}
	if code, _ := get(t, h, "/nothing", nil); code != 404 {
		t.Errorf("/nothing: %d", code)
	}
}

package metrics

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/stacktest"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// full is a page with every family: a stack's, and those of a device with two queues.
func full(t *testing.T) string {
	t.Helper()
	server, client := stacktest.Pair(t)
	connect(t, server, client)
	var b bytes.Buffer
	program := func() []ProgramSockets { return []ProgramSockets{{"udp", "kernel", 3}} }
	if err := (&exporter{stack: server, program: program}).write(&b); err != nil {
		t.Fatal(err)
	}
	var p page
	r := ofDevice("mlx5_0", dv.Stats{OutOfBuffer: 3,
		Rx: []dv.RxStats{{Packets: 1<<64 - 1, Polls: 9, Hits: 4, AsleepNanos: 1.5e9},
			{Packets: 7, Resets: 2}},
		Tx: []dv.TxStats{{Bytes: 8}, {}}})
	r.registered, r.tx[1].used, r.rx[1].left = 4096, 0.25, 0.75
	r.info = []string{"device", "mlx5_0", "fw", `22 "\`}
	r.xdp = &packet.XDPStats{Queues: 3, Bound: 2, NetdevQueues: 4, QueueChanges: 1}
	p.writeRings(r)
	p.writeSwitches([]stack.BackendSwitch{{From: "rings", To: "none", Cause: "device_failed",
		Count: 2}})
	p.filterRules(filtered(t))
	return b.String() + p.String()
}

// filtered holds the status of a filter with more rules than have labels of their own.
func filtered(t *testing.T) stack.FilterStatus {
	t.Helper()
	text := "chain output { ip daddr 192.0.2.9 drop; }\nchain input {\npolicy drop\n"
	for range maxRules + 2 {
		text += "tcp dport 80 accept\n"
	}
	f, err := stack.NewFilter(text + "}")
	if err != nil {
		t.Fatal(err)
	}
	s := f.Status()
	for i := range s.Chains[0].Rules {
		s.Chains[0].Rules[i].Packets = uint64(i)
	}
	return s
}

// connect makes a connection over which a byte went.
func connect(t *testing.T, server, client *stack.Stack) {
	t.Helper()
	ln, err := server.Listen("tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.Dial("tcp", stacktest.Used().ServerIP4.Addr().String()+":80")
	if err != nil {
		t.Fatal(err)
	}
	s, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(s, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

func TestPage(t *testing.T) {
	text := full(t)
	for _, want := range []string{
		"# TYPE rdma_netstack_link_up gauge\nrdma_netstack_link_up 1\n",
		"rdma_netstack_backend_switches_total{from=\"rings\",to=\"none\"," +
			"cause=\"device_failed\"} 2\n",
		"# TYPE rdma_netstack_rx_packets_total counter\n" +
			"rdma_netstack_rx_packets_total{device=\"mlx5_0\",queue=\"0\"} 18446744073709551615\n" +
			"rdma_netstack_rx_packets_total{device=\"mlx5_0\",queue=\"1\"} 7\n",
		"rdma_netstack_rx_polls_total{device=\"mlx5_0\",queue=\"0\",result=\"empty\"} 5\n",
		"rdma_netstack_queue_recoveries_total{device=\"mlx5_0\",queue=\"1\",reporter=\"rx\"} 2\n",
		"rdma_netstack_tx_bytes_total{device=\"mlx5_0\",queue=\"0\"} 8\n",
		"rdma_netstack_tx_ring_used_ratio{device=\"mlx5_0\",queue=\"1\"} 0.25\n",
		"rdma_netstack_rx_ring_left_ratio{device=\"mlx5_0\",queue=\"1\"} 0.75\n",
		"rdma_netstack_rx_asleep_seconds_total{device=\"mlx5_0\",queue=\"0\"} 1.5\n",
		"rdma_netstack_hw_events_total{name=\"out_of_buffer\"} 3\n",
		"rdma_netstack_memory_registered_bytes 4096\n",
		"rdma_netstack_xdp_queues{socket=\"yes\"} 2\nrdma_netstack_xdp_queues{socket=\"no\"} 2\n",
		"rdma_netstack_xdp_queue_changes_total 1\n",
		"rdma_netstack_device_info{device=\"mlx5_0\",fw=\"22 \\\"\\\\\"} 1\n",
		"rdma_netstack_tcp_connections{state=\"ESTAB\"} 1\n",
		"rdma_netstack_tcp_connections{state=\"TIME-WAIT\"} 0\n",
		"rdma_netstack_tcp_listeners 1\n", "rdma_netstack_tcp_accepted_total 1\n",
		"rdma_netstack_backend_info{backend=\"link\"} 1\n",
		"rdma_netstack_backend_info{backend=\"rings\"} 0\n",
		"rdma_netstack_health_errors_total{reporter=\"tx\"} 0\n" +
			"rdma_netstack_health_errors_total{reporter=\"rx\"} 0\n",
		`rdma_netstack_filter_packets_total{chain="input",rule="64",verdict="accept"} 63` +
			"\n" + `rdma_netstack_filter_packets_total{chain="input",rule="others",verdict=""} 129` +
			"\n" + `rdma_netstack_filter_packets_total{chain="input",rule="policy",verdict="drop"} 0` +
			"\n" + `rdma_netstack_filter_packets_total{chain="output",rule="1",verdict="drop"} 0`,
		"rdma_netstack_filter_loads_total 0\n",
		"rdma_netstack_health_in_error{reporter=\"device\"} 0\n",
		"rdma_netstack_device_away_seconds_total 0\n",
		"rdma_netstack_rx_dropped_total{reason=\"shed\"} 0\n",
		"rdma_netstack_events_total{name=\"tcp_passive_connection_openings\"} 1\n",
		"rdma_netstack_events_total{name=\"link_rx_shed\"} 0\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("not there: %q", want)
		}
	}
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok {
			if seen[name] {
				t.Errorf("twice: %s", name)
			}
			seen[name] = true
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

// TestPacketSockets are counted under the names that rings have.
func TestPacketSockets(t *testing.T) {
	var p page
	p.writeRings(ofPackets("eth0", packet.Stats{
		Rx: []packet.RxStats{{Frames: 5, Calls: 9, Hits: 2}},
		Tx: []packet.TxStats{{Frames: 6, Full: 4}}}))
	for _, want := range []string{`rx_packets_total{device="eth0",queue="0"} 5`,
		`rx_polls_total{device="eth0",queue="0",result="empty"} 7`,
		`tx_packets_total{device="eth0",queue="0"} 6`,
		`tx_stalls_total{device="eth0",queue="0"} 4`} {
		if !strings.Contains(p.String(), prefix+want+"\n") {
			t.Errorf("not there: %q in\n%s", want, p.String())
		}
	}
}

// TestRTT: a look adds each connection once, and a second look at the same time adds none.
func TestRTT(t *testing.T) {
	var r rtt
	sockets := []stack.Socket{{State: "ESTAB", TCP: &stack.TCPInfo{RTT: 2 * time.Millisecond}},
		{State: "ESTAB", TCP: &stack.TCPInfo{RTT: 3 * time.Second}},
		{State: "ESTAB", TCP: &stack.TCPInfo{}}, {State: "LISTEN"},
		{State: "TIME-WAIT", TCP: &stack.TCPInfo{RTT: time.Second}}}
	now := time.Unix(1, 0)
	r.sampleRTTs(sockets, now)
	r.sampleRTTs(sockets, now.Add(lookPause-1))
	r.sampleRTTs(sockets[:1], now.Add(lookPause))
	var p page
	r.write(&p)
	for _, want := range []string{`bucket{le="0.001"} 0`, `bucket{le="0.0025"} 2`,
		`bucket{le="2.5"} 2`, `bucket{le="+Inf"} 3`, "sum 3.004", "count 3"} {
		if !strings.Contains(p.String(), "rdma_netstack_tcp_rtt_seconds_"+want+"\n") {
			t.Errorf("not there: %q in\n%s", want, p.String())
		}
	}
}

// TestPromtool has Prometheus' promtool check the page, and a broken one.
func TestPromtool(t *testing.T) {
	promtool := need.Tool(t, "promtool")
	check := func(text string) ([]byte, error) {
		cmd := exec.Command(promtool, "check", "metrics")
		cmd.Stdin = strings.NewReader(text)
		return cmd.CombinedOutput()
	}
	text := full(t)
	if out, err := check(text); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
	for _, c := range []struct{ name, from, to string }{
		{"a label without quotes", `queue="1"`, `queue=1`},
		{"counters that are not called so", "_total", ""},
	} {
		if _, err := check(strings.ReplaceAll(text, c.from, c.to)); err == nil {
			t.Errorf("promtool does not mind %s", c.name)
		}
	}
}

// TestDocumented: docs/metrics.md has each name of a page, and no other.
func TestDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	rows := regexp.MustCompile("(?m)^\\| `([a-z_0-9]+)")
	for _, m := range rows.FindAllStringSubmatch(string(doc), -1) {
		listed[m[1]] = true
	}
	// of the host's own addresses only, which need a namespace
	written := map[string]bool{"twin_accepts_total": true, "twin_dials_total": true,
		"twin_datagrams_total": true, "host_fragments_dropped_total": true, "rules": true}
	for line := range strings.Lines(full(t)) {
		if name, ok := strings.CutPrefix(line, "# TYPE "+prefix); ok {
			written[strings.Fields(name)[0]] = true
		}
	}
	for name := range written {
		if !listed[name] {
			t.Errorf("docs/metrics.md lacks %s", name)
		}
	}
	for name := range listed {
		if !written[name] {
			t.Errorf("docs/metrics.md has %s, which is not written", name)
		}
	}
}

// TestHandler scrapes a stack through itself: its own traffic raises the counters.
func TestHandler(t *testing.T) {
	server, client := stacktest.Pair(t)
	ln, err := server.Listen("tcp", ":9100")
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Server{Handler: Handler(server)}
	go web.Serve(ln)
	defer web.Close()
	c := client.HTTPClient()
	defer c.CloseIdleConnections()
	resp, err := c.Get("http://192.0.2.1:9100/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.Header.Get("Content-Type") != ContentType {
		t.Errorf("%v, %q", err, resp.Header.Get("Content-Type"))
	}
	for _, want := range []string{"rdma_netstack_tcp_accepted_total 1\n",
		"rdma_netstack_tcp_connections{state=\"ESTAB\"} 1\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("not there: %q", want)
		}
	}
	if strings.Contains(string(text), prefix+"rx_packets_total") {
		t.Error("queues of a stack that has none")
	}
}

// refusing fails every write.
type refusing struct{}

var errRefused = errors.New("refused")

func (refusing) Write([]byte) (int, error) { return 0, errRefused }

func TestWriteFails(t *testing.T) {
	server, _ := stacktest.Pair(t)
	if err := (&exporter{stack: server}).write(refusing{}); !errors.Is(err, errRefused) {
		t.Errorf("%v, want %v", err, errRefused)
	}
}

package metrics

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/stacktest"
	"github.com/rdma-netstack/rdma-netstack/tests/need"
)

// full is a page with every family: a stack's, and those of a device with two queues.
func full() []byte {
	var b bytes.Buffer
	list(&b, stack.Stats{LinkUp: true, RxPackets: 1<<64 - 1, TCPCurrentEstablished: 3},
		dv.Stats{Rx: []dv.RxStats{{Packets: 5, Drops: dv.RxDrops{TooLong: 6}}, {Packets: 7}},
			Tx: []dv.TxStats{{LSO: 8}, {}}})
	return b.Bytes()
}

func TestPage(t *testing.T) {
	page := string(full())
	for _, want := range []string{
		"# TYPE rdma_netstack_stack_link_up gauge\nrdma_netstack_stack_link_up 1\n",
		"# TYPE rdma_netstack_stack_rx_packets_total " +
			"counter\nrdma_netstack_stack_rx_packets_total 18446744073709551615\n",
		"\nrdma_netstack_stack_tcp_current_established 3\n",
		"\nrdma_netstack_device_rx_packets_total{queue=\"0\"} " +
			"5\nrdma_netstack_device_rx_packets_total{queue=\"1\"} 7\n",
		"\nrdma_netstack_device_rx_drops_too_long_total{queue=\"0\"} 6\n",
		"\nrdma_netstack_device_tx_lso_total{queue=\"0\"} 8\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("not there: %q", want)
		}
	}
	seen := map[string]bool{}
	for line := range strings.Lines(page) {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok {
			if seen[name] {
				t.Errorf("twice: %s", name)
			}
			seen[name] = true
		}
	}
}

// TestPromtool has Prometheus' promtool check the page, and a broken one.
func TestPromtool(t *testing.T) {
	promtool := need.Tool(t, "promtool")
	check := func(page []byte) ([]byte, error) {
		cmd := exec.Command(promtool, "check", "metrics")
		cmd.Stdin = bytes.NewReader(page)
		return cmd.CombinedOutput()
	}
	server, _ := stacktest.Pair(t)
	var whole bytes.Buffer
	if err := Write(&whole, server); err != nil {
		t.Fatal(err)
	}
	if out, err := check(whole.Bytes()); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := check(full()); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
	for _, c := range []struct{ name, from, to string }{
		{"a label without quotes", `queue="1"`, `queue=1`},
		{"counters that are not called so", "_total", ""},
	} {
		if _, err := check(bytes.ReplaceAll(full(), []byte(c.from), []byte(c.to))); err == nil {
			t.Errorf("promtool does not mind %s", c.name)
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
	page, err := io.ReadAll(resp.Body)
	if err != nil || resp.Header.Get("Content-Type") != ContentType {
		t.Errorf("%v, %q", err, resp.Header.Get("Content-Type"))
	}
	for _, line := range []string{
		"# TYPE rdma_netstack_tcp_retransmits_total counter\nrdma_netstack_tcp_retransmits_total " +
			"0\n",
		"# TYPE rdma_netstack_tcp_current_established " +
			"gauge\nrdma_netstack_tcp_current_established 1\n",
		"\nrdma_netstack_link_rx_shed_total 0\n", "\nrdma_netstack_ack_held_total ",
		"\n# TYPE rdma_netstack_ack_waiting gauge\n",
		"\nrdma_netstack_health_error_total{reporter=\"tx\"} 0\n" +
			"rdma_netstack_health_error_total{reporter=\"rx\"} 0\n",
		"\nrdma_netstack_health_in_error{reporter=\"device\"} 0\n",
		"\nrdma_netstack_failover_failed_total 0\n",
		"\nrdma_netstack_failover_away_seconds_total 0.000\n",
	} {
		if !strings.Contains(string(page), line) {
			t.Errorf("not there: %q", line)
		}
	}
	if !strings.Contains(string(page), "rdma_netstack_stack_tcp_accepted_total 1\n") ||
		strings.Contains(string(page), prefix+"device_") {
		t.Errorf("of a stack without a device that took one connection came\n%s", page)
	}
}

// refusing fails every write.
type refusing struct{}

var errRefused = errors.New("refused")

func (refusing) Write([]byte) (int, error) { return 0, errRefused }

func TestWriteFails(t *testing.T) {
	server, _ := stacktest.Pair(t)
	if err := Write(refusing{}, server); !errors.Is(err, errRefused) {
		t.Errorf("%v, want %v", err, errRefused)
	}
}

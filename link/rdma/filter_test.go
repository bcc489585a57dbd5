package rdma

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/capture"
	"github.com/rdma-netstack/rdma-netstack/link/filter"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// newFilter returns a filter with a list.
func newFilter(t testing.TB, text string) *filter.Filter {
	t.Helper()
	f, err := filter.New(nil, clock.Clock{})
	if err != nil {
		t.Fatal(err)
	}
	loadList(t, f, text)
	return f
}

func loadList(t testing.TB, f *filter.Filter, text string) {
	t.Helper()
	list, err := filter.Parse(text)
	if err == nil {
		err = f.Load(list)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// tryDial dials for a while.
func (h *host) tryDial(a netip.Addr, port uint16, d time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	address, proto := full(a, port)
	conn, err := gonet.DialContextTCP(ctx, h.stack, address, proto)
	if err == nil {
		conn.Close()
	}
	return err
}

// serverRules lets in port 80 of the server of pair and nothing else.
const serverRules = `
	chain input {
		ip daddr 10.9.0.1 tcp dport 80 accept
		ip daddr 10.9.0.1 drop
	}`

// TestFilter: what the list of a server drops does not come to it, is counted and is in a capture
// with the rule; what answers the server's own dials passes; and a list is changed at run time.
func TestFilter(t *testing.T) {
	f := newFilter(t, serverRules)
	server, client := pair(t, setup{opts: Options{Filter: f}})
	for port := range uint16(2) {
		go echo(server.listen(t, server.v4, 80+port))
	}
	go echo(client.listen(t, client.v4, 82))
	blocks := capturedBlocks(t, server.ep, capture.Options{Direction: capture.In, Filter: "tcp"})
	const short = 200 * time.Millisecond
	if err := client.tryDial(server.v4, 80, time.Minute); err != nil {
		t.Errorf("a port that is let in: %v", err)
	}
	if err := client.tryDial(server.v4, 81, short); err == nil {
		t.Error("a port that is dropped answers")
	}
	if n := server.ep.Stats().RxFiltered; n == 0 {
		t.Error("nothing is counted as filtered")
	}
	if err := server.tryDial(client.v4, 82, time.Minute); err != nil {
		t.Errorf("the server dials: %v", err)
	}
	dropped := 0
	for _, b := range blocks() {
		const want = "rule 2 of the filter's chain input drops it (line 4)"
		if comment := commentOf(b); comment == want {
			dropped++
		} else if comment != "" {
			t.Errorf("a frame is dropped: %s", comment)
		}
	}
	if dropped == 0 {
		t.Error("the capture does not show what is dropped")
	}
	loadList(t, f, strings.Replace(serverRules, "80", "81", 1))
	if err := client.tryDial(server.v4, 81, time.Minute); err != nil {
		t.Errorf("a port that is let in now: %v", err)
	}
	if err := client.tryDial(server.v4, 80, short); err == nil {
		t.Error("a port that is dropped now answers")
	}
}

// TestFilterChanged changes the list all the time under a transfer: nothing that both lists let in
// is dropped.
func TestFilterChanged(t *testing.T) {
	f := newFilter(t, serverRules)
	server, client := pair(t, setup{opts: Options{Filter: f},
		dv: dv.Config{NIC: dv.NIC{Rings: dv.Rings{DelayDrop: true}}}})
	stop, changes := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for ; ; n++ {
			select {
			case <-stop:
				changes <- n
				return
			default:
			}
			rules := serverRules
			if n%2 == 0 {
				rules = "chain input { policy drop; ip saddr { 10.9.0.0-10.9.0.9 } accept; }"
			}
			list, err := filter.Parse(rules)
			if err == nil {
				err = f.Load(list)
			}
			if err != nil {
				t.Error(err)
			}
		}
	}()
	transfer(t, server, client, make([]byte, 32<<20))
	close(stop)
	n, dropped := <-changes, server.ep.Stats().RxFiltered+client.ep.Stats().RxFiltered
	if n < 100 || dropped > 0 {
		t.Errorf("%d changes, %d frames dropped", n, dropped)
	}
}

// TestFilteredDatagram: a datagram that the list drops on the way out is refused with EPERM.
func TestFilteredDatagram(t *testing.T) {
	f := newFilter(t, "chain output {\nudp dport 53 drop\n}")
	_, dev := openDevice(t, 1, setup{})
	e, err := New(dev, Options{Filter: f})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	s := e.tx[0]
	for port, want := range map[uint16]bool{53: true, 54: false} {
		frame := (&tcpFrame{Src: ourMAC, Dst: peerMAC, From: 1, To: 2,
			Ports: [2]uint16{40000, port}, TTL: 64}).Encode(hdr.ProtoUDP,
			[]byte{0x9c, 0x40, 0, byte(port), 0, 8, 0, 0}, 6)
		n, err := s.writeDatagrams([]Datagram{{Headers: frame}}, fullRingWait)
		if _, refused := err.(*tcpip.ErrNotPermitted); refused != want || (n == 0) != want {
			t.Errorf("to port %d: %d sent, %v", port, n, err)
		}
	}
	if n := e.Stats().TxFiltered; n != 1 {
		t.Errorf("%d packets are counted", n)
	}
}

package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/eth"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// mostChannels tells by how many queues each end of a cable of cableOfQueues can receive and send.
const mostChannels = 4

// cableOfQueues makes a veth pair as lab.Cable does, whose ends can have mostChannels queues.
func cableOfQueues(a *lab.Net, aName string, b *lab.Net, bName string) error {
	other, err := os.Open(b.Path())
	if err != nil {
		return err
	}
	defer other.Close()
	return a.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: aName,
			NumTxQueues: mostChannels, NumRxQueues: mostChannels}, PeerName: bName,
			PeerNumTxQueues: mostChannels, PeerNumRxQueues: mostChannels,
			PeerNamespace: netlink.NsFd(other.Fd())})
	})
}

// setChannels changes how many queues we receive by. The peer's kernel sends by as many: Linux
// refuses a veth with a program fewer of ours than the peer has, and more of the peer's.
func (w *world) setChannels(ours int) error {
	set := func(n *lab.Net, kind string) error {
		return n.Do(func() error {
			out, err := exec.Command("ethtool", "-L", ifname, kind, fmt.Sprint(ours)).
				CombinedOutput()
			if err != nil && !strings.Contains(string(out), "no channel parameters changed") {
				return fmt.Errorf("%s: %w", strings.TrimSpace(string(out)), err)
			}
			return nil
		})
	}
	if err := set(w.peer, "tx"); err == nil { // fewer than before
		return set(w.ours, "rx")
	}
	return errors.Join(set(w.ours, "rx"), set(w.peer, "tx"))
}

// flow represents a socket of the peer's kernel that sends us datagrams and reads our answers.
type flow struct{ conn net.PacketConn }

// openFlows opens sockets that differ in their ports, so that they are spread over all queues.
func (w *world) openFlows(t testing.TB) (all []flow) {
	t.Helper()
	for range 64 {
		c, err := w.peer.ListenPacket("udp", netip.AddrPortFrom(peerIP.Addr(), 0).String())
		must(t, err)
		t.Cleanup(func() { c.Close() })
		all = append(all, flow{c})
	}
	return all
}

// exchange sends a datagram, answers it, and reads the answer. What is lost while the kernel has
// the link down for a change is sent again.
func (f flow) exchange(t testing.TB, p packet.Interface, r *reception) {
	t.Helper()
	port := uint16(f.conn.LocalAddr().(*net.UDPAddr).Port)
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		_, err := f.conn.WriteTo(eth.Payload(100),
			net.UDPAddrFromAddrPort(netip.AddrPortFrom(ourIP.Addr(), 9)))
		if err != nil && !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EHOSTUNREACH) {
			t.Fatal(err)
		}
		select {
		case got := <-r.frames:
			if binary.BigEndian.Uint16(got.Data[ethLen+ipv4Len:]) != port {
				continue // one that was sent twice
			}
		case <-time.After(time.Second):
			continue
		}
		answer := ipFrame(peerMAC, ourIP.Addr(), peerIP.Addr(), protoUDP,
			eth.UDP(9, port, eth.Payload(100)))
		copy(answer[6:], ourMAC)
		send(t, p.Tx(0), packet.TxFrame{Bufs: [][]byte{answer}, Flags: packet.TxChecksum})
		must(t, f.conn.SetReadDeadline(time.Now().Add(time.Second)))
		if _, _, err := f.conn.ReadFrom(make([]byte, 200)); err == nil {
			return
		}
	}
	t.Fatalf("no answer to port %d: %+v", port, p.(*Port).Stats())
}

// TestChannels changes the number of receive queues under traffic of 64 flows: those of queues
// without a socket of ours come by packet sockets, those of the others by AF_XDP as before, and
// each change is told of once. On queues that a veth has from the beginning the program runs, which
// passes them; on those that it gets later Linux 6.18 runs none.
func TestChannels(t *testing.T) {
	need.Tool(t, "ethtool")
	for _, by := range []Send{SendSockets, SendRings} {
		t.Run(by.String(), func(t *testing.T) {
			w := newWorldCabled(t, cableOfQueues)
			must(t, w.setChannels(mostChannels))
			reports := make(chan error, 10)
			p := w.open(t, Config{Config: packet.Config{Queues: 1}, Options: Options{Send: by},
				Report: func(err error) { reports <- err }})
			r, flows := receiveAll(p), w.openFlows(t)
			for changes, queues := range []int{mostChannels, 1, 4, 2, 1} {
				if changes > 0 {
					must(t, w.setChannels(queues))
				}
				p.lookAtQueues()
				p.lookAtQueues()
				want := fmt.Sprintf("receives by %d queues and has sockets on 1,", queues)
				select {
				case err := <-reports:
					if queues == 1 && err != nil ||
						queues > 1 && (err == nil || !strings.Contains(err.Error(), want)) {
						t.Errorf("%d queues: told %v", queues, err)
					}
				case <-time.After(20 * time.Second):
					t.Fatalf("%d queues: nobody was told", queues)
				}
				direct, beside := -int(r.counts[0].Load()), -int(r.counts[1].Load())
				for _, f := range flows {
					f.exchange(t, p, r)
				}
				direct += int(r.counts[0].Load())
				beside += int(r.counts[1].Load())
				if direct == 0 || (beside > 0) != (queues > 1) || len(reports) > 0 {
					t.Errorf("%d queues: %d frames by AF_XDP, %d by packet sockets, %d more told",
						queues, direct, beside, len(reports))
				}
				if x := p.Stats().XDP; x.Bound != 1 || x.NetdevQueues != queues ||
					x.QueueChanges != uint64(changes) || p.Dropped() != 0 {
					t.Errorf("%d queues: %+v, %d dropped", queues, x, p.Dropped())
				}
			}
		})
	}
}

// TestChannelsKept: Linux does not take queues away that have a socket of ours, and what comes by
// them goes on.
func TestChannelsKept(t *testing.T) {
	need.Tool(t, "ethtool")
	w := newWorldCabled(t, cableOfQueues)
	must(t, w.setChannels(mostChannels))
	p := w.open(t, Config{Report: func(err error) { t.Errorf("told %v", err) }})
	r, flows := receiveAll(p), w.openFlows(t)
	for range 2 {
		for _, f := range flows {
			f.exchange(t, p, r)
		}
		for i := range r.counts {
			if n := r.counts[i].Load(); (n > 0) != (i < mostChannels) {
				t.Errorf("%d frames by queue %d", n, i)
			}
		}
		if x := p.Stats().XDP; x.Bound != mostChannels || x.QueueChanges != 0 {
			t.Errorf("%+v", x)
		}
		if err := w.setChannels(2); err == nil {
			t.Error("the kernel took queues with sockets away")
		}
		p.lookAtQueues()
	}
}

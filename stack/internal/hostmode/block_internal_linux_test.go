package hostmode

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/internal/backing"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// TestBlock requires that a block goes round ports that others have, that it has a socket for each
// port of its own only, and says how long it takes.
func TestBlock(t *testing.T) {
	need.NetNS(t)
	host, err := lab.New("host")
	must(t, err)
	defer host.Close()
	must(t, host.Do(func() error { return lab.Up("lo", lab.Setup{}) }))
	at := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	other, err := host.ListenPacket("udp", "127.0.0.1:61500")
	must(t, err)
	defer other.Close()
	must(t, host.Do(func() error {
		open := linuxSockets{backing.NewFilters(backing.Device{Index: 1}, clock.Clock{})}
		defer open.Close()
		began := time.Now()
		b, err := openBlock(firstBlock, []netip.Addr{at}, open)
		if err != nil {
			return err
		}
		need.Note(t, fmt.Sprintf("%d ports of TCP and UDP held in %v, the first block in vain",
			blockSize, time.Since(began).Round(time.Millisecond)))
		if b.First != firstBlock+blockSize {
			t.Errorf("first %d, want %d", b.First, firstBlock+blockSize)
		}
		for _, p := range []backing.Protocol{backing.TCP, backing.UDP} {
			for _, port := range []uint16{b.First, b.First + blockSize - 1} {
				end := netip.AddrPortFrom(at, port)
				s, ok := b.Socket(p, end).(linuxSocket)
				if !ok || s.Addr() != end {
					t.Errorf("%s %v: %+v", p, end, s)
				}
			}
		}
		if s := b.Socket(backing.TCP, netip.AddrPortFrom(at, b.First+blockSize)); s != nil {
			t.Errorf("beyond the block: %v", s)
		}
		second, err := openBlock(firstBlock, []netip.Addr{at}, open)
		if err != nil {
			return err
		}
		if second.First != b.First+blockSize {
			t.Errorf("the second block begins at %d", second.First)
		}
		if err := errors.Join(b.Close(), b.Close(), second.Close()); err != nil {
			return err
		}
		again, err := openBlock(firstBlock, []netip.Addr{at}, open)
		if err != nil {
			return err
		}
		if again.First != b.First {
			t.Errorf("after Close the block begins at %d", again.First)
		}
		return again.Close()
	}))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

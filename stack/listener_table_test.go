package stack

import (
	"math/rand/v2"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// TestListenerTable compares the table with Linux's rule, applied to every pair of listeners: two
// that reach a common address have the same port only if both share it.
func TestListenerTable(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	v4, v6 := tcpip.AddrFrom4([4]byte{192, 0, 2, 1}), tcpip.AddrFrom16([16]byte{0xfd, 15: 1})
	addrs := []tcpip.Address{{}, {}, v4, tcpip.AddrFrom4([4]byte{192, 0, 2, 2}), v6}
	table, open := newListenerTable(), []*TCPListener{}
	overlap := func(a, b *TCPListener) bool {
		if a.bound.Addr.Len() > 0 && b.bound.Addr.Len() > 0 {
			return a.bound.Addr == b.bound.Addr
		}
		a4, a6 := covers(a.family, a.bound.Addr)
		b4, b6 := covers(b.family, b.bound.Addr)
		return a4 && b4 || a6 && b6
	}
	refused := 0
	for step := range 20000 {
		if i := rnd.IntN(16); i < len(open) {
			table.remove(open[i])
			table.remove(open[i]) // changes nothing
			open = append(open[:i], open[i+1:]...)
			continue
		}
		at := tcpip.FullAddress{Addr: addrs[rnd.IntN(len(addrs))], Port: uint16(1 + rnd.IntN(3))}
		l := &TCPListener{shared: rnd.IntN(2) == 0, bound: at, ep: &tableEndpoint{id: step}}
		switch {
		case at.Addr.Len() == 0:
			l.family = family(rnd.IntN(3))
		case at.Addr == v6:
			l.family = inet6
		}
		want := false
		for _, o := range open {
			want = want || o.bound.Port == at.Port && overlap(l, o) && !(l.shared && o.shared)
		}
		if got := table.taken(l, at); got != want {
			t.Fatalf("step %d: taken is %v, want %v", step, got, want)
		} else if got {
			refused++
			continue
		}
		table.add(l, at)
		open = append(open, l)
	}
	for _, l := range open {
		table.remove(l)
	}
	if len(table.byEndpoint)+len(table.byPort) != 0 || refused == 0 {
		t.Errorf("%d listeners and %d ports are left; %d were refused", len(table.byEndpoint),
			len(table.byPort), refused)
	}
}

// tableEndpoint is an endpoint that is only compared.
type tableEndpoint struct {
	tcpip.Endpoint
	id int
}

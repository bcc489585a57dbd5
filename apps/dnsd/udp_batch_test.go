package dnsd

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/net/ipv4"
)

// batches is a conn that moves several datagrams at once. It can be told to wait for a second
// datagram of a batch, and it refuses the first answer of every batch.
type batches struct {
	*net.UDPConn
	pairs, refuse atomic.Bool
}

func (c *batches) ReadBatch(ms []ipv4.Message, _ int) (int, error) {
	for i := 0; ; i++ {
		n, addr, err := c.ReadFrom(ms[i].Buffers[0])
		if err != nil {
			return 0, err
		}
		ms[i].N, ms[i].Addr = n, addr
		if i == 1 || !c.pairs.Load() {
			return i + 1, nil
		}
	}
}

func (c *batches) WriteBatch(ms []ipv4.Message, _ int) (int, error) {
	if c.refuse.Swap(false) {
		return 0, errors.New("refused")
	}
	for i := range ms {
		if _, err := c.WriteTo(ms[i].Buffers[0], ms[i].Addr); err != nil {
			return i, err
		}
	}
	return len(ms), nil
}

// TestBatches queries in pairs: each query gets its own answer, garbage gets none, and an answer
// that the conn refuses does not affect the next one.
func TestBatches(t *testing.T) {
	var conn *batches
	s, addr := serve(t, Config{Zones: []Zone{{File: "testdata/example.org.zone"}}, UDPWorkers: 1},
		func(pc net.PacketConn) net.PacketConn {
			conn = &batches{UDPConn: pc.(*net.UDPConn)}
			return conn
		})
	query := func(name string) *dns.Msg { return new(dns.Msg).SetQuestion(name, dns.TypeSOA) }
	if r := ask(t, "udp", addr, query("example.org.")); r.Rcode != dns.RcodeSuccess {
		t.Fatalf("answer %v", r)
	}
	conn.pairs.Store(true)
	for round := range 3 {
		conn.refuse.Store(round == 2)
		c, err := dns.Dial("udp", addr)
		if err != nil {
			t.Fatal(err)
		}
		one, two := query("example.org."), query("nowhere.example.")
		if round == 1 {
			_, err = c.Write([]byte("garbage"))
		} else {
			err = c.WriteMsg(one)
		}
		if err := errors.Join(err, c.WriteMsg(two)); err != nil {
			t.Fatal(err)
		}
		want := []uint16{one.Id, two.Id}
		if round > 0 {
			want = want[1:]
		}
		for _, id := range want {
			r, err := c.ReadMsg()
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			if r.Id != id || (r.Rcode == dns.RcodeSuccess) != (id == one.Id) {
				t.Errorf("round %d: answer %v", round, r)
			}
		}
		c.Close()
	}
	conn.pairs.Store(false)
	if c := s.Counters(); c.UDP != 7 || c.WriteErrors != 1 || c.Dropped != 1 {
		t.Errorf("%+v", c)
	}
}

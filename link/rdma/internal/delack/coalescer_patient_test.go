package delack

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// TestPatience: a flow whose data came twice after the ACK, with its number, has the longer
// delay. A script is ACK numbers, with d after those of data, and pauses in ms after a ~. For each
// pause there is what went out before, and behind a | what the timer sent.
func TestPatience(t *testing.T) {
	const trusted, soFar = "100 200 ~10 200d 300 ~10 300d 400", "100|200; 200+|300; "
	for _, tc := range []struct{ name, script, want string }{
		{"data later, twice", trusted + " ~30 400d ~50", soFar + "300+|; 400+|"},
		{"and no data in the end", trusted + " ~39 ~1 500 ~6", soFar + "300+|; |400; |500"},
		{"once is not enough", "100 200 ~10 200d 300 ~6", "100|200; 200+|300"},
		{"data much later", "100 200 ~41 200d 300 ~41 300d 400 ~6", soFar + "300+|400"},
		{"more had come before the data", "100 200 ~10 300d 400 ~10 500d 600 ~6",
			"100|200; 300+|400; 500+|600"},
		{"more had come before data, the third time",
			"100 200 ~10 200d 300 ~10 400 ~10 400d 500 ~6", soFar + "|400; 400+|500"},
		{"more than a segment", "100 200 ~10 200d 300 ~10 300d 1400 ~6", soFar + "300+|1400"},
		{"more than a segment in parts", trusted + " ~3 1400 ~6", soFar + "300+|; |1400"},
		{"two segments", trusted + " 2400 ~1", soFar + "300+ 2400|"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(&wireLog{seed: testKey}, testKey, Options{})
				defer c.Close()
				if got := playACKs(c, tc.script); got != tc.want {
					t.Errorf("%q, want %q", got, tc.want)
				}
			})
		})
	}
}

// playACKs runs a script of TestPatience and returns what went out.
func playACKs(c *Coalescer, script string) string {
	wire := c.lower.(*wireLog)
	var out []string
	for word := range strings.FieldsSeq(script) {
		if pause, is := strings.CutPrefix(word, "~"); is {
			before, ms := wire.drain(), 0
			fmt.Sscan(pause, &ms)
			time.Sleep(time.Duration(ms) * time.Millisecond)
			synctest.Wait()
			out = append(out, before+"|"+wire.drain())
			continue
		}
		f := tcpframe.Segment(0)
		f.Payload = nil
		if number, data := strings.CutSuffix(word, "d"); data {
			f.Payload, word = []byte("data"), number
		}
		fmt.Sscan(word, &f.Ack)
		pkt := f.Packet()
		_ = c.WritePacket(pkt)
		pkt.DecRef()
	}
	return strings.Join(out, "; ")
}

// TestDelayGiven: a delay that was asked for is the longest.
func TestDelayGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(&wireLog{seed: testKey}, testKey,
			Options{Delay: 5 * time.Millisecond})
		defer c.Close()
		got := playACKs(c, "100 200 ~10 200d 300 ~10 300d 400 ~6")
		if want := "100|200; 200+|300; 300+|400"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// TestTable: flows in use all have a place, which moves when the table grows, and those that
// begin or have ended do not have it grow.
func TestTable(t *testing.T) {
	draw := rand.New(rand.NewPCG(1, 2))
	table := newFlowTable()
	use := func(n int, flags byte) (keys []uint64) {
		for range n {
			key := draw.Uint64() | 1
			f := table.place(key)
			*f = flow{key: key, acked: uint32(key)}
			table.use(f, flags)
			keys = append(keys, key)
		}
		return keys
	}
	use(100000, hdr.FlagSYN)
	use(100000, hdr.FlagFIN|hdr.FlagACK)
	use(100000, hdr.FlagRST)
	if n := len(table.sets); n != firstSets {
		t.Errorf("%d sets after a flood", n)
	}
	keys, lost := use(5000, hdr.FlagACK), 0
	for range 5 {
		lost = 0
		for _, key := range keys {
			if f := table.find(key); f == nil {
				lost++
				*table.place(key) = flow{key: key, acked: uint32(key), used: table.seconds}
			} else if f.acked != uint32(key) {
				t.Fatalf("flow %x has that of %x", uint32(key), f.acked)
			}
		}
	}
	if n := len(table.sets); lost > 100 || n == maxSets {
		t.Errorf("%d of 5,000 flows in use have no place, of %d sets", lost, n)
	}
	use(200000, hdr.FlagACK)
	if n := len(table.sets); n != maxSets {
		t.Errorf("%d sets, %d at most", n, maxSets)
	}
	table.seconds += idleSeconds
	if f := table.place(4); f.used == table.seconds {
		t.Error("no place of a flow that is not in use any more")
	}
}

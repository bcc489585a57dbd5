package rdma

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync/atomic"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/moving"
)

// TestLossInSuperSegment loses one frame of a super-segment that is all the data in flight:
// netstack must detect the loss before its retransmission timeout, for which SACK of parts of it is
// taken out. When netstack segments itself, as a control, it does, and the reordering window takes
// out at most the first.
func TestLossInSuperSegment(t *testing.T) {
	const mss, frames = 1420, 10 // netstack's first window
	for _, noSegmentation := range []bool{false, true} {
		for _, hole := range []uint32{0, 4, 8} {
			t.Run(fmt.Sprintf("own segmentation %v/frame %d", noSegmentation, hole),
				func(t *testing.T) {
					var first, lost atomic.Uint32
					lose := func(frame []byte) bool {
						l := parsed(frame)
						if l.Proto != hdr.ProtoTCP || l.L4 == 0 || l.End-l.L4 < mss {
							return false
						}
						seq := binary.BigEndian.Uint32(frame[l.L4+4:])
						first.CompareAndSwap(0, seq)
						return seq == first.Load()+hole*mss && lost.Add(1) == 1
					}
					s := setup{lose: lose, opts: Options{NoSegmentation: noSegmentation},
						dv: dv.Config{NIC: dv.NIC{Rings: dv.Rings{DelayDrop: true}}}}
					attempts(t, s, func(t *testing.T, a, b *host) string {
						first.Store(0)
						lost.Store(0)
						ln := a.listen(t, a.v4, 80)
						conn := b.dial(t, a.v4, 80)
						server, err := ln.Accept()
						if err != nil {
							t.Fatal(err)
						}
						defer server.Close()
						if _, err := conn.Write(make([]byte, frames*mss)); err != nil {
							t.Fatal(err)
						}
						moves := moving.Conn(server, new(moving.Meter), moving.Limit)
						if _, err := io.ReadFull(moves, make([]byte, frames*mss)); err != nil {
							t.Fatal(err)
						}
						if lost.Load() == 0 {
							t.Error("nothing was lost")
						}
						sacks, timeouts := b.ep.Stats().RxSACKRemoved,
							b.stack.Stats().TCP.Timeouts.Value()
						wrong := sacks == 0
						if noSegmentation {
							wrong = sacks > 1
						}
						if timeouts > 0 || wrong {
							return fmt.Sprintf("%d retransmission timeouts, %d SACKs taken out",
								timeouts, sacks)
						}
						return ""
					})
				})
		}
	}
}

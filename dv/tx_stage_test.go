package dv

import (
	"encoding/binary"
	"testing"
)

// TestTxStageRestarts: staging memory is written from its start when nothing is outstanding, and
// else behind what was written last, whose part is the NIC's or goes by an older mark.
func TestTxStageRestarts(t *testing.T) {
	staged, inline := &TxPacket{Bufs: [][]byte{make([]byte, 1000)}},
		&TxPacket{Bufs: [][]byte{make([]byte, 60)}}
	lso := &TxPacket{Bufs: [][]byte{make([]byte, 4054)}, HdrLen: 54, MSS: 1000}
	r := newTxRig(t, 64, 128<<10, defaultLimits)
	for _, step := range []struct {
		name string
		p    *TxPacket
		done bool  // then it is completed, and all before it
		at   int64 // where in staging memory it is; -1: nowhere
	}{
		{"first", staged, true, 0},
		{"all done", staged, false, 0},
		{"one outstanding", staged, true, 1024},
		{"all done again", lso, false, 0},
		{"a long one outstanding", lso, true, 4032},
		{"inline", inline, false, -1},
		{"inline outstanding", staged, false, 8064},
		{"both outstanding", staged, true, 9088},
		{"all done at last", staged, true, 0},
	} {
		start := r.q.pc
		r.post(t, step.p)
		if blocks := int(r.q.pc - start); step.at >= 0 {
			w := r.wqe(start, blocks*64)
			ds := int(w[7])
			if at := int64(binary.BigEndian.Uint64(w[ds*16-8:]) - r.stage.Addr()); at != step.at {
				t.Errorf("%s: at %d, want %d", step.name, at, step.at)
			}
		}
		if step.done {
			r.nic.put(sent(uint16(start)))
			if r.q.Reclaim() == 0 || r.q.cc != r.q.pc {
				t.Fatalf("%s: not completed", step.name)
			}
		}
	}
}

package dv_test

import (
	"bytes"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// uncombined is a kernel that maps nothing write-combining, though the device
// has registers for it.
type uncombined struct{ uverbs.Kernel }

func (k uncombined) Mmap(offset int64, length int, writable bool) (*uverbs.Page, error) {
	if offset/int64(length)>>8&0xff == uverbs.MmapWCPage {
		return nil, unix.EPERM
	}
	return k.Kernel.Mmap(offset, length, writable)
}

// Lone descriptors go with their doorbells where device, kernel and Config say so,
// and the NIC takes them; elsewhere the doorbells are plain. Frames are the same.
func TestBlueFlame(t *testing.T) {
	for _, c := range []struct {
		name    string
		linux   kernel.Config
		cfg     dv.Config
		refuses bool
		why     string // "" for on
	}{
		{"on", kernel.Config{}, dv.Config{Tuning: dv.Tuning{BlueFlame: true},
			NIC: dv.NIC{TxQueues: 3}}, false, ""},
		{"without shared descriptors", kernel.Config{},
			dv.Config{Tuning: dv.Tuning{BlueFlame: true, NoMultiPacketSend: true}}, false, ""},
		{"off", kernel.Config{}, dv.Config{}, false, "choice: BlueFlame is not set"},
		{"machine without", kernel.Config{NoWriteCombining: true},
			dv.Config{Tuning: dv.Tuning{BlueFlame: true}},
			false, "device: doorbells cannot"},
		{"kernel without", kernel.Config{}, dv.Config{Tuning: dv.Tuning{BlueFlame: true}},
			true, "kernel: does not map"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSim(t, simnic.Config{}, c.linux)
			if c.refuses {
				c.cfg.Model.Kernel = func() (uverbs.Kernel, error) {
					k, err := s.linux.OpenNode()
					return uncombined{k}, err
				}
			}
			d := s.open(t, c.cfg)
			for _, f := range d.Features() {
				if f.Name == "BlueFlame" &&
					(f.On != (c.why == "") || !f.On && !strings.HasPrefix(f.Why, c.why)) {
					t.Errorf("%+v", f)
				}
			}
			flames := uint64(0)
			for i := range 600 { // more than the ring holds
				q := d.Tx(i % d.NumTx())
				want := frame(peerMAC, ourMAC, 0x88b5, 60+i)
				if err := q.Post(&dv.TxPacket{Bufs: [][]byte{want}}); err != nil {
					t.Fatal(err)
				}
				q.Flush()
				q.Reclaim()
				if got := s.wire.drain(); len(got) != 1 || !bytes.Equal(got[0], want) {
					t.Fatalf("frame %d: %d sent", i, len(got))
				}
			}
			sendMixed(t, d, 40) // a batch has nothing to gain
			for _, q := range d.Stats().Tx {
				flames += q.BlueFlames
			}
			if got := s.nic.Counters().BlueFlames; got != flames || c.why == "" && flames < 590 ||
				c.why != "" && flames != 0 {
				t.Errorf("%d copies sent, %d came", flames, got)
			}
		})
	}
}

// A queue that was replaced goes on with copies, and arming works on pages that
// are mapped so.
func TestBlueFlameRecovery(t *testing.T) {
	s, d := usual(t, dv.Config{Tuning: dv.Tuning{BlueFlame: true}})
	q, p := d.Tx(0), dv.TxPacket{Bufs: [][]byte{frame(peerMAC, ourMAC, 0x88b5, 60)}}
	for round := range 3 {
		if round == 1 {
			s.nic.SetHooks(&simnic.Hooks{SendWQE: func(*simnic.SQ, uint16) (uint8,
				uint8) {
				return 0x04, 0
			}})
		} else {
			s.nic.SetHooks(nil)
		}
		for range 3 {
			if err := q.Post(&p); err != nil {
				t.Fatal(err)
			}
			q.Flush()
			q.Reclaim()
		}
	}
	if st := q.Stats(); st.BlueFlames != 9 || st.Resets != 3 ||
		st.Drops.Lost != 3 || len(s.wire.drain()) != 6 {
		t.Errorf("stats %+v", st)
	}
	d.Rx(0).Arm()
	s.wire.send(t, frame(ourMAC, peerMAC, 0x88b5, 60))
	if err := d.Rx(0).Wait(); err != nil || len(poll(d.Rx(0))) != 1 || d.Rx(0).Stats().Events != 1 {
		t.Errorf("%v, stats %+v", err, d.Rx(0).Stats())
	}
}

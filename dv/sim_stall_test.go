package dv_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// virtualTime is a clock of a send queue that moves when it is told to.
type virtualTime struct{ at time.Time }

func (v *virtualTime) now() time.Time { return v.at }

// pass lets d go by, with the queue looked after ten times a second, and something posted
// whenever there is room.
func (v *virtualTime) pass(t *testing.T, d time.Duration, q *dv.TxQueue) {
	t.Helper()
	p := dv.TxPacket{Bufs: [][]byte{frame(peerMAC, ourMAC, 0x88b5, 300)}}
	for end := v.at.Add(d); v.at.Before(end); v.at = v.at.Add(100 * time.Millisecond) {
		_ = q.Post(&p) // full most of the time
		q.Flush()
		q.Check()
	}
}

// stalled is a device whose first send queue has a clock of ours.
func stalled(t *testing.T) (*sim, *dv.Device, *virtualTime) {
	s, d := usual(t, dv.Config{NIC: dv.NIC{Rings: dv.Rings{TxQueueSize: 64}},
		Tuning: dv.Tuning{NoMultiPacketSend: true}})
	v := &virtualTime{time.Unix(1000, 0)}
	d.Tx(0).SetClock(v.now)
	return s, d, v
}

// receives checks that frames come in as ever.
func receives(t *testing.T, s *sim, d *dv.Device, when string) {
	t.Helper()
	want := frame(ourMAC, peerMAC, 0x88b5, 500)
	s.wire.send(t, want)
	if got := poll(d.Rx(0)); len(got) != 1 || !bytes.Equal(got[0].Data, want) {
		t.Errorf("%s: %d frames received of 1", when, len(got))
	}
}

// The switch pauses the port for as long as it likes: the send queue is replaced once in 15 s, as
// linux does for its own, and that never counts towards giving the device up. Reception goes on
// meanwhile, and sending afterwards.
func TestPause(t *testing.T) {
	for _, pause := range []time.Duration{100 * time.Millisecond, 14 * time.Second, time.Minute,
		time.Hour} {
		t.Run(pause.String(), func(t *testing.T) {
			s, d, clock := stalled(t)
			q := d.Tx(0)
			exchangeSmall(t, s, d)
			fault := s.nic.Inject(simnic.QueueFault{Kind: simnic.FaultPause})
			clock.pass(t, pause/2, q)
			receives(t, s, d, "while the port is paused")
			clock.pass(t, pause/2, q)
			if n := len(s.wire.drain()); n != 0 {
				t.Errorf("%d frames on the wire of a paused port", n)
			}
			if err := d.Err(); err != nil {
				t.Fatalf("the device is over: %v", err)
			}
			st := q.Stats()
			least, most := uint64(pause/(16*time.Second)), uint64(pause/(15*time.Second))
			if st.Resets < least || st.Resets > most {
				t.Errorf("%d resets, want %d to %d", st.Resets, least, most)
			}
			if n := q.ConsecutiveResets(); n != 0 {
				t.Errorf("%d resets count towards giving the device up", n)
			}
			fault.Remove()
			q.Reclaim()
			if n := len(s.wire.drain()); n == 0 {
				t.Error("nothing goes out after the pause")
			}
			exchangeSmall(t, s, d)
			if n := s.linux.Refused(); n != 0 {
				t.Errorf("%d refused commands in the kernel's log", n)
			}
		})
	}
}

// Without a link a NIC may hold what is to be sent. That is left alone however long it takes, and
// goes out when the link is back; the 15 s of a queue that stands still begin then.
func TestHeldWithoutLink(t *testing.T) {
	s, d, clock := stalled(t)
	q := d.Tx(0)
	s.nic.Inject(simnic.QueueFault{Kind: simnic.FaultHoldWithoutLink})
	exchangeSmall(t, s, d)
	s.nic.SetLink(false)
	told(t, d, false)
	clock.pass(t, time.Hour, q)
	if st := q.Stats(); st.Resets != 0 || st.Drops.Lost != 0 {
		t.Errorf("%d resets without a link, %d packets lost", st.Resets, st.Drops.Lost)
	}
	pause := s.nic.Inject(simnic.QueueFault{Kind: simnic.FaultPause})
	s.nic.SetLink(true)
	told(t, d, true)
	clock.pass(t, 14*time.Second, q)
	if st := q.Stats(); st.Resets != 0 {
		t.Errorf("%d resets 14 s after the link came", st.Resets)
	}
	pause.Remove()
	if n := len(s.wire.drain()); n != 64 {
		t.Errorf("%d frames of a full ring of 64 sent when the link is back", n)
	}
	q.Reclaim()
	exchangeSmall(t, s, d)
	receives(t, s, d, "after the link came")
}

// A pause, a failed send and a pause again: only the error counts, until something is sent.
func TestPauseBetweenErrors(t *testing.T) {
	s, d, clock := stalled(t)
	q := d.Tx(0)
	p := dv.TxPacket{Bufs: [][]byte{frame(peerMAC, ourMAC, 0x88b5, 300)}}
	for round := range 3 {
		pause := s.nic.Inject(simnic.QueueFault{Kind: simnic.FaultPause})
		clock.pass(t, 31*time.Second, q)
		if n := q.ConsecutiveResets(); n != round {
			t.Errorf("round %d: %d resets in a row after a pause, want %d", round, n, round)
		}
		s.nic.Inject(simnic.QueueFault{Kind: simnic.FaultSendError, Syndrome: 4, Count: 1})
		_ = q.Post(&p)
		q.Flush()
		pause.Remove()
		q.Reclaim()
	}
	clock.pass(t, time.Second, q)
	if n := q.ConsecutiveResets(); n != 0 || d.Err() != nil {
		t.Errorf("%d resets in a row after a success, device: %v", n, d.Err())
	}
}

// exchangeSmall is exchange for a queue of 64 blocks.
func exchangeSmall(t *testing.T, s *sim, d *dv.Device) {
	t.Helper()
	want := frame(peerMAC, ourMAC, 0x88b5, 1000)
	if err := d.Tx(0).Post(&dv.TxPacket{Bufs: [][]byte{want}}); err != nil {
		t.Fatal(err)
	}
	d.Tx(0).Flush()
	if n := d.Tx(0).Reclaim(); n != 1 {
		t.Errorf("%d packets done of 1", n)
	}
	if got := s.wire.drain(); len(got) != 1 || !bytes.Equal(got[0], want) {
		t.Errorf("%d frames sent of 1", len(got))
	}
	receives(t, s, d, "beside that")
}

// A receive queue is taken out of the state that the NIC has it in, without trying: a wrong guess
// is a line in the kernel's log.
func TestRxResetNamesState(t *testing.T) {
	for _, c := range []struct {
		name     string
		cfg      dv.Config
		syndrome uint8
	}{
		{"in error", dv.Config{}, 0x04},
		{"striding, in error", dv.Config{NIC: dv.NIC{Rings: dv.Rings{Striding: true}}}, 0x04},
		{"striding, ready", dv.Config{NIC: dv.NIC{Rings: dv.Rings{Striding: true}}}, 0x01},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSim(t, simnic.Config{}, kernel.Config{})
			c.cfg.Rings.RxQueueSize = 64
			d := s.open(t, c.cfg)
			for range 3 {
				s.nic.Inject(simnic.QueueFault{Kind: simnic.FaultReceiveError, Count: 1,
					Syndrome: c.syndrome})
				s.wire.send(t, frame(ourMAC, peerMAC, 0x88b5, 100))
				poll(d.Rx(0))
				receives(t, s, d, "after a reset")
			}
			if st, n := d.Rx(0).Stats(), s.linux.Refused(); st.Resets != 3 || n != 0 {
				t.Errorf("%d resets, want 3; %d refused commands in the kernel's log", st.Resets, n)
			}
		})
	}
}

// An event that a receive queue is in error, which it is not, costs a refused command and no reset.
func TestRxWrongEvent(t *testing.T) {
	s, d := usual(t, dv.Config{NIC: dv.NIC{Rings: dv.Rings{RxQueueSize: 64}}})
	_, wq := d.RxHandles(0)
	d.Tell(uverbs.AsyncEvent{Type: uverbs.EventWQFatal, Element: wq})
	poll(d.Rx(0))
	receives(t, s, d, "after the event")
	if st, n := d.Rx(0).Stats(), s.linux.Refused(); st.Resets != 0 || n != 1 {
		t.Errorf("%d resets, %d refused commands, want none and one", st.Resets, n)
	}
	if v := strings.Join(s.nic.Violations(), "\n"); v != "" {
		t.Error(v)
	}
}

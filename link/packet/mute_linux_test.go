package packet

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestMute: a muted port is given nothing, what it had not delivered is gone and counted, and
// changes of groups do not unmute it. Unmuted, it receives as before.
func TestMute(t *testing.T) {
	w := newWorld(t)
	witness := w.open(t, Config{}) // opened first, it is given each frame last
	p := w.open(t, Config{})
	fd := w.rawSocket(t, 0)
	send := func(last byte) {
		t.Helper()
		frame := make([]byte, 60)
		copy(frame, ourMAC)
		copy(frame[6:], peerMAC)
		frame[12], frame[13], frame[14] = 0x88, 0xb5, last
		if _, err := unix.Write(fd, frame); err != nil {
			t.Fatal(err)
		}
	}
	send(1)
	if got := receive(t, p.Rx(0), 1); got[0].Data[14] != 1 {
		t.Fatalf("%x", got[0].Data)
	}
	receive(t, witness.Rx(0), 1)
	for range 40 { // more than a batch
		send(2)
	}
	receive(t, witness.Rx(0), 40)
	must(t, p.Mute())
	must(t, p.SetGroups(nil))
	for range 5 {
		send(3)
	}
	receive(t, witness.Rx(0), 5)
	must(t, p.Unmute())
	send(4)
	if got := receive(t, p.Rx(0), 1); got[0].Data[14] != 4 {
		t.Errorf("%x came", got[0].Data)
	}
	if s := p.Stats().Rx[0]; s.Frames != 2 || s.Discarded != 40 || s.Dropped != 0 {
		t.Errorf("%+v", s)
	}
	for range 2 {
		must(t, p.Close())
	}
	must(t, p.Mute())
	must(t, p.Unmute())
}

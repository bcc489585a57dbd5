package card

import (
	"fmt"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// stampGap gives the least time between the two frames whose time stamps are compared. A rate that
// is wrong by more than one part in stampSlack shows.
const stampGap, stampSlack = 20 * time.Millisecond, 50

// stamped is a frame's time stamp, and when it was taken by the system's clock: after one moment
// and before another.
type stamped struct {
	ticks         uint64
	after, before time.Time
}

// timeStamps receives two frames, one a while after the other, and compares the time between
// them by the NIC's clock and by the system's.
func (s *session) timeStamps() (string, error) {
	if s.source == nil {
		return "", skip("no frames come in")
	}
	clock, ok := s.dev.Clock()
	if !ok {
		return "", skip("the kernel does not tell the rate of the NIC's clock")
	}
	first, err := s.stampOne()
	if err != nil {
		return "", err
	}
	select {
	case <-time.After(stampGap):
	case <-s.ctx.Done():
	}
	second, err := s.stampOne()
	if err != nil {
		return "", err
	}
	form := fmt.Sprintf("a clock of %d kHz", s.dev.Caps().ClockKHz)
	if s.dev.Caps().RealTimeStamps {
		form = "real time"
		s.noteFact("ahead of the system's clock", "%v",
			clock.Time(second.ticks).Sub(second.before).Round(time.Microsecond))
	}
	s.noteFact("stamps", "%#x %#x", first.ticks, second.ticks)
	passed := clock.Time(second.ticks).Sub(clock.Time(first.ticks))
	least, most := second.after.Sub(first.before), second.before.Sub(first.after)
	saw := fmt.Sprintf("stamps of %s: %v between two frames, %v to %v by the system's clock", form,
		passed, least, most)
	if passed < least-least/stampSlack || passed > most+most/stampSlack {
		return "", fmt.Errorf("%s", saw)
	}
	return saw, nil
}

// stampOne receives one frame.
func (s *session) stampOne() (got stamped, err error) {
	got.after = time.Now()
	want, err := s.toCard(s.dev.MAC(), 1, minFrame)
	if err != nil {
		return got, err
	}
	for found := false; !found; {
		if len(s.fromCard(1, func(p *dv.Packet) {
			if seq, ok := sequenceOf(p.Data); ok && seq == want {
				found, got.ticks = true, p.Timestamp
			}
		})) == 0 {
			return got, fmt.Errorf("a frame for %s was sent and did not come in %v", s.dev.MAC(),
				s.cfg.Patience)
		}
	}
	got.before = time.Now()
	return got, nil
}

package card

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"time"
)

// registration looks for our address among those that the netdev has asked the e-switch for. A
// card without an e-switch in use passes any address, and has it in the list all the same.
func (s *session) registration() (string, error) {
	if s.cfg.UnicastList == nil {
		return "", skip("there is no netdev whose list could be read")
	}
	list, err := s.cfg.UnicastList()
	if err != nil {
		return "", fmt.Errorf("read the netdev's address list: %w", err)
	}
	for _, a := range list {
		s.noteFact("registered", "%s", a)
	}
	mac := s.dev.MAC()
	switch {
	case bytes.Equal(mac, s.cfg.NetdevMAC):
		return "our address is the netdev's own", nil
	case !slices.ContainsFunc(list, func(a net.HardwareAddr) bool { return bytes.Equal(a, mac) }):
		return "", fmt.Errorf(
			"%s is not in the netdev's unicast list: an e-switch in front of the port does not "+
				"pass frames for it",
			mac)
	}
	return fmt.Sprintf("%s is in the netdev's unicast list", mac), nil
}

// watchCable watches what the card does without its cable, if somebody pulls it.
func (s *session) watchCable() (string, error) {
	if s.cfg.Ask == nil {
		return "", skip("nobody was asked to pull it: --pull does")
	}
	start := time.Now()
	s.cfg.Ask("pull the cable of " + s.dev.Name() + " now")
	if !s.awaitFor(s.cfg.PullPatience, func() bool { return !s.dev.LinkUp() }) {
		return "", fmt.Errorf("the link stayed up for %v", s.cfg.PullPatience)
	}
	s.noteFact("link down", "told after %v", time.Since(start).Round(time.Millisecond))
	s.sendDown()
	start = time.Now()
	s.cfg.Ask("plug it in again")
	if !s.awaitFor(s.cfg.PullPatience, s.dev.LinkUp) {
		return "", fmt.Errorf("the link did not come back in %v", s.cfg.PullPatience)
	}
	s.noteFact("link up", "told after %v", time.Since(start).Round(time.Millisecond))
	if err := s.sendUp(); err != nil {
		return "", err
	}
	return "link changes were told, and frames go again", nil
}

// sendDown sends a frame without a link, and notes what becomes of it. Cards complete it, or keep
// it until the link is back; both is right.
func (s *session) sendDown() {
	_, err := s.postQuietly(markedFrame(nearest, s.dev.MAC(), s.nextSeq(), minFrame))
	if err != nil {
		s.noteFact("frame without link", "%v", err)
		return
	}
	cqe, err := s.completion()
	if err != nil {
		s.noteFact("frame without link", "%v", err)
		return
	}
	s.noteFact("frame without link", "completed: %s", cqe.String())
}

// sendUp wants a frame to go, and those that waited.
func (s *session) sendUp() error {
	q := s.dev.Tx(0)
	if _, err := s.postQuietly(markedFrame(nearest, s.dev.MAC(), s.nextSeq(),
		minFrame)); err != nil {
		return err
	}
	q.Flush()
	if !s.awaitDone(func() bool {
		q.Reclaim()
		q.Check()
		return q.Free() == s.room
	}) {
		return fmt.Errorf("the link is up, and frames were not completed in %v", s.cfg.Patience)
	}
	return nil
}

package card

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/probe"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// broadcastCopy sends a broadcast, which both we and Linux are to get, and asks Linux for its
// address.
func (s *session) broadcastCopy() (string, error) {
	if s.source == nil {
		return "", skip("no frames come in")
	}
	if err := s.checkCopied(); err != nil {
		return "", err
	}
	linux := "whether Linux gets its own was not seen"
	if s.wire != nil && s.netdev != nil {
		if !s.awaitDone(func() bool { return s.netdev.hasReceived(isMarked(s.sent - 1)) }) {
			return "", errors.New("a broadcast came to us and not to Linux")
		}
		linux = "Linux got its own"
	}
	answered, err := s.linuxAnswers()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("a broadcast came to us; %s; %s", linux, answered), nil
}

// checkCopied sends a broadcast and waits for its copy.
func (s *session) checkCopied() error {
	want, err := s.toCard(probe.Broadcast, 1, minFrame)
	if err != nil {
		return err
	}
	for {
		seqs := s.fromCard(1, nil)
		switch {
		case len(seqs) == 0:
			return fmt.Errorf("a broadcast was sent, and no copy of it came to us in %v",
				s.cfg.Patience)
		case seqs[len(seqs)-1] == want:
			return nil
		}
	}
}

// isMarked tells our frame with this number.
func isMarked(want uint32) func([]byte) bool {
	return func(f []byte) bool {
		seq, ok := sequenceOf(f)
		return ok && seq == want
	}
}

// linuxAnswers asks for Linux's address by ARP: from the wire, or else by our own send ring. The
// question is a probe (RFC 5227), from nobody's IP address: it leaves no trace in Linux's table.
func (s *session) linuxAnswers() (string, error) {
	who := s.cfg.LinuxAddress
	if !who.Is4() {
		return "ARP was not tried, the netdev has no IPv4 address", nil
	}
	from := s.dev.MAC()
	if s.wire != nil {
		from = s.sourceMAC
	}
	ask := probe.ARPFrame(from, netip.IPv4Unspecified(), who)
	answer := func(f []byte) bool {
		return probe.ParseFrame(f).ARPSender == who && string(f[:6]) == string(from)
	}
	ok, err := s.askWire(ask, answer), error(nil)
	if s.wire == nil {
		ok, err = s.askRing(ask, answer)
	}
	if err != nil {
		return "", err
	}
	if !ok {
		return "", fmt.Errorf("ARP for %s, which Linux has there, was not answered in %v", who,
			s.cfg.Patience)
	}
	return fmt.Sprintf("Linux answered ARP for %s to %s", who, net.HardwareAddr(from)), nil
}

func (s *session) askWire(ask []byte, answer func([]byte) bool) bool {
	if s.wire == nil {
		return false
	}
	if n, _ := s.source.Send([]frame.Frame{{Data: ask}}); n != 1 {
		return false
	}
	return s.awaitDone(func() bool { return s.wire.hasReceived(answer) })
}

func (s *session) askRing(ask []byte, answer func([]byte) bool) (found bool, err error) {
	if _, err := s.postQuietly(ask); err != nil {
		return false, err
	}
	if _, err := s.completion(); err != nil {
		return false, err
	}
	s.dev.Tx(0).Reclaim()
	pkts := make([]dv.Packet, ringSize)
	s.awaitDone(func() bool {
		n := s.dev.Rx(0).Poll(pkts)
		s.got += uint32(n)
		for i := range pkts[:n] {
			found = found || answer(pkts[i].Data)
		}
		s.dev.Rx(0).Release(pkts[:n])
		return found
	})
	return found, nil
}

package card

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// session describes one run. It is used by one goroutine.
type session struct {
	ctx    context.Context
	cfg    Config
	report doctor.Report
	facts  []doctor.Fact // of the check that runs

	fds    int // descriptors of this process before
	dev    *dv.Device
	tap    *tap
	second *uverbs.Context // the context that switches loopback on; nil with a wire

	wire, netdev *inbox // what came out there; nil without
	source       wire.Wire
	sourceMAC    net.HardwareAddr

	room      int    // blocks of the empty send ring
	sent      uint32 // sequence number of the next frame for the card
	got       uint32 // frames taken from the receive queue
	lastCount uint16 // wqe_counter of the last single receive completion
	sendIndex uint16 // index of the last send WQE
	sendCount uint16 // wqe_counter of its completion
}

// Sizes of the rings, the least there are: few frames go around them.
const ringSize = 64

func (s *session) noteFact(name, format string, args ...any) {
	s.facts = append(s.facts, doctor.Fact{Name: name, Value: fmt.Sprintf(format, args...)})
}

func (s *session) openSession() (string, error) {
	cfg := s.cfg.NIC
	cfg.RxQueues, cfg.TxQueues, cfg.Rings.RxQueueSize, cfg.Rings.TxQueueSize = 1, 1, ringSize,
		ringSize
	cfg.Tuning.NoMultiPacketSend, cfg.Tuning.BlueFlame, cfg.Rings.Striding = true, false, false
	cfg.Tuning.NoMultiSegment = true
	cfg.Interpose = func(k uverbs.Kernel) uverbs.Kernel {
		s.tap = &tap{Kernel: k, alive: map[string]int{}, cqs: map[uint32]ring{}}
		return s.tap
	}
	dev, err := dv.Open(s.ctx, cfg)
	if err != nil {
		return "", err
	}
	s.dev, s.report.Device, s.room = dev, dev.Name(), dev.Tx(0).Free()
	for _, f := range dev.Features() {
		s.noteFact(f.Name, "%s: %s", map[bool]string{true: "on", false: "off"}[f.On], f.Why)
	}
	if err := s.chooseSource(); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s opened: firmware %s, our MAC %s, MTU %d, link %s", dev.Name(),
		dev.Caps().Firmware, dev.MAC(), dev.MTU(),
		map[bool]string{true: "up", false: "down"}[dev.LinkUp()]), s.openLoop()
}

// outside gives the address of who is at the other end of the cable.
var outside = net.HardwareAddr{0x02, 0, 0, 0, 0xfc, 0x01}

// chooseSource decides where frames for the card come from.
func (s *session) chooseSource() (err error) {
	if s.wire, err = newInbox(s.cfg.Wire); err != nil {
		return err
	}
	if s.netdev, err = newInbox(s.cfg.Netdev); err != nil {
		return err
	}
	switch {
	case s.wire != nil:
		s.source, s.sourceMAC = s.cfg.Wire, outside
	case s.netdev != nil:
		s.source, s.sourceMAC = s.cfg.Netdev, s.cfg.NetdevMAC
	}
	return nil
}

// openLoop opens the second context where frames have to come from the same port.
func (s *session) openLoop() error {
	if s.wire != nil || s.netdev == nil || s.cfg.OpenNode == nil {
		return nil
	}
	k, err := s.cfg.OpenNode()
	if err != nil {
		return fmt.Errorf("open the node once more, for loopback: %w", err)
	}
	if s.second, err = uverbs.Open(k, uverbs.Options{}); err != nil {
		return fmt.Errorf("open a second context, for loopback: %w", err)
	}
	return nil
}

// wordsText prints bytes in groups of four, as the card reads them.
func wordsText(b []byte) string {
	groups := make([]string, 0, len(b)/4)
	for ; len(b) >= 4; b = b[4:] {
		groups = append(groups, hex.EncodeToString(b[:4]))
	}
	return strings.Join(groups, " ")
}

// noteCQE adds a completion to the facts.
func (s *session) noteCQE(name string, b []byte) {
	s.noteFact(name, "%s", wordsText(b))
	s.noteFact(name+", read", "%s", (*mlx5.CQE)(b).String())
}

// awaitDone asks done again and again until it is true, or the patience of the checks is at its
// end.
func (s *session) awaitDone(done func() bool) bool { return s.awaitFor(s.cfg.Patience, done) }

func (s *session) awaitFor(d time.Duration, done func() bool) bool {
	for end := time.Now().Add(d); !done(); {
		if s.ctx.Err() != nil || time.Now().After(end) {
			return done()
		}
		time.Sleep(200 * time.Microsecond)
	}
	return true
}

// leftBehind closes the device, and looks for what is still there.
func (s *session) leftBehind() (string, error) {
	if s.dev == nil {
		return "", skip("the device did not open")
	}
	s.dev.Stop()
	err := s.dev.Close()
	if s.second != nil {
		err = errors.Join(err, s.second.Close())
	}
	s.wire.stopKeeping()
	s.netdev.stopKeeping()
	if err != nil {
		return "", fmt.Errorf("closing the device: %w", err)
	}
	if left := s.tap.leftObjects(); left != "" {
		return "", fmt.Errorf("still there after closing the device: %s", left)
	}
	if n := openFiles(); n > s.fds {
		return "", fmt.Errorf("%d file descriptors more than before", n-s.fds)
	}
	return "all kernel objects destroyed, the node and all event descriptors closed", nil
}

// openFiles returns how many descriptors this process has.
func openFiles() int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(list)
}

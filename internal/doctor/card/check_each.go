package card

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/internal/probe"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// firstSend sends one frame, and looks at the descriptor and the completion where they lie.
func (s *session) firstSend() (string, error) {
	f := markedFrame(nearest, s.dev.MAC(), s.nextSeq(), minFrame)
	p, err := s.postQuietly(f)
	if err != nil {
		return "", err
	}
	start := time.Now()
	cqe, err := s.completion()
	took := time.Since(start)
	s.noteWQE(p)
	if err != nil {
		return "", err
	}
	s.noteCQE("CQE", cqe[:])
	if cqe.Opcode() != mlx5.CQEReq {
		return "", fmt.Errorf("the completion is no success: %s", cqe.String())
	}
	if n := s.dev.Tx(0).Reclaim(); n != 1 {
		return "", fmt.Errorf("a completion is there, and the driver made %d packets of it", n)
	}
	s.sendIndex, s.sendCount = uint16(mlx5.CtrlIndex.Get(p.bytes)), cqe.WQECounter()
	if s.wire != nil && !s.awaitDone(func() bool {
		return s.wire.hasReceived(func(got []byte) bool { return bytes.Equal(got, f) })
	}) {
		return "", errors.New("the completion came, and the frame did not come out of the " +
			"port, as behind an e-switch with spoof check on")
	}
	return fmt.Sprintf("completed after %d us", took.Microseconds()), nil
}

func (s *session) nextSeq() uint32 {
	s.sent++
	return s.sent - 1
}

// noteWQE adds a descriptor to the facts, with what Flush changed in it.
func (s *session) noteWQE(p posted) {
	copy(p.bytes, p.readAgain())
	s.noteFact("WQE", "%s", wordsText(p.bytes))
	s.noteFact("WQE, control segment", "%s", mlx5.CtrlLayout.String(p.bytes))
	s.noteFact("WQE, Ethernet segment", "%s", mlx5.EthLayout.String(p.bytes[mlx5.CtrlSegSize:]))
}

// posted describes a descriptor in the send ring.
type posted struct {
	bytes []byte // a copy
	ring  ring
	first int // its first block
}

// byteAddr returns where byte i of the descriptor lies; one at the end of the ring goes on at its
// start.
func (p posted) byteAddr(i int) uint64 {
	return p.ring.addr + uint64((p.first*mlx5.BB+i)%(p.ring.entries*mlx5.BB))
}

// readAgain reads the descriptor once more; what cannot be read is left out.
func (p posted) readAgain() []byte {
	b, err := p.ring.copyRing()
	if err != nil {
		return nil
	}
	return append(b, b...)[p.first*mlx5.BB:][:len(p.bytes)]
}

// postQuietly posts a frame without telling the card, and finds its descriptor.
func (s *session) postQuietly(f []byte) (p posted, err error) {
	send, _ := s.tap.newestQueues()
	before, err := send.ring.copyRing()
	if err != nil {
		return p, err
	}
	if err := s.dev.Tx(0).Post(&dv.TxPacket{Bufs: [][]byte{f}}); err != nil {
		return p, fmt.Errorf("post a frame: %w", err)
	}
	after, err := send.ring.copyRing()
	if err != nil {
		return p, err
	}
	at := send.ring.changedEntries(before, after)
	if len(at) == 0 {
		return p, errors.New("no descriptor of it is in the send ring")
	}
	p = posted{ring: send.ring, first: at[0]}
	if last := send.ring.entries - 1; p.first == 0 && at[len(at)-1] == last {
		p.first = last // of two blocks, the second one at the start of the ring
	}
	n := int(mlx5.CtrlDS.Get(after[p.first*mlx5.BB:])) * mlx5.DSSize
	twice := append(after, after...)
	p.bytes = twice[p.first*mlx5.BB:][:n]
	return p, nil
}

// completion rings the doorbell and waits for a new completion of the send queue, which it leaves
// to the driver.
func (s *session) completion() (*mlx5.CQE, error) {
	send, _ := s.tap.newestQueues()
	before, err := send.cq.copyRing()
	if err != nil {
		return nil, err
	}
	s.dev.Tx(0).Flush()
	at := -1
	if !s.awaitDone(func() bool {
		after, err := send.cq.copyRing()
		if err == nil {
			at = send.cq.completed(before, after)
		}
		return at >= 0
	}) {
		return nil, fmt.Errorf("no completion came in %v", s.cfg.Patience)
	}
	// A copy in which the owner bit is new may hold other bytes from before it.
	after, err := send.cq.copyRing()
	if err != nil {
		return nil, err
	}
	var cqe mlx5.CQE
	copy(cqe[:], after[(at+1)*send.cq.size-mlx5.CQESize:])
	return &cqe, nil
}

// receiveStart receives one frame for our address, and looks at its completion.
func (s *session) receiveStart() (string, error) {
	if s.source == nil {
		return "", skip("the port's netdev is not in this network namespace, and nobody else sends")
	}
	cqe, size, err := s.receiveOne()
	if err != nil {
		return s.receiveAnswer(err)
	}
	s.noteCQE("CQE", cqe[:])
	return fmt.Sprintf("the first frame came in, %d bytes, %s", size, s.framePath()), nil
}

// receiveAnswer has a neighbour answer ARP, where frames by loopback do not come: a card that
// receives from its cable only leaves the checks that need many frames without.
func (s *session) receiveAnswer(err error) (string, error) {
	for _, who := range s.cfg.Neighbours {
		answered, askErr := s.askRing(probe.ARPFrame(s.dev.MAC(), netip.IPv4Unspecified(), who),
			func(f []byte) bool { return probe.ParseFrame(f).ARPSender == who })
		if askErr != nil {
			return "", askErr
		}
		if answered {
			s.source = nil
			s.noteFact("by loopback", "%v", err)
			return fmt.Sprintf("the ARP answer of %s came in; nothing came by loopback", who), nil
		}
	}
	return "", err
}

// framePath says how frames came to the card.
func (s *session) framePath() string {
	if s.wire != nil {
		return "from the wire"
	}
	return "from the netdev of the same port, by loopback"
}

// lonely says how often receiveOne tries to have a frame come in alone.
const lonely = 20

// receiveOne receives one frame, alone, and returns its completion as it lies in the ring.
func (s *session) receiveOne() (cqe mlx5.CQE, size int, err error) {
	for range lonely {
		alone, size, err := s.receiveAmong(&cqe)
		if err != nil || alone {
			return cqe, size, err
		}
	}
	return cqe, 0, fmt.Errorf(
		"%d frames came in, each together with others: try it on a quiet port",
		lonely)
}

// receiveAmong receives one frame. alone is false if others came with it, so that its
// completion cannot be told from theirs.
func (s *session) receiveAmong(cqe *mlx5.CQE) (alone bool, size int, err error) {
	_, recv := s.tap.newestQueues()
	before, err := recv.cq.copyRing()
	if err != nil {
		return false, 0, err
	}
	want, err := s.toCard(s.dev.MAC(), 1, minFrame)
	if err != nil {
		return false, 0, err
	}
	for found := false; !found; {
		seqs := s.fromCard(1, func(p *dv.Packet) { size = p.Size() })
		if len(seqs) == 0 {
			return false, 0, fmt.Errorf("a frame for %s was sent and did not come in %v",
				s.dev.MAC(), s.cfg.Patience)
		}
		found = seqs[len(seqs)-1] == want
	}
	after, err := recv.cq.copyRing()
	if err != nil {
		return false, 0, err
	}
	at := recv.cq.changedEntries(before, after)
	if len(at) != 1 {
		return false, size, nil
	}
	copy(cqe[:], after[(at[0]+1)*recv.cq.size-mlx5.CQESize:])
	s.lastCount = cqe.WQECounter()
	return true, size, nil
}

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

// stampGap gives the least time between the two frames whose time stamps are compared. A rate that
// is wrong by more than one part in stampSlack shows.
const stampGap, stampSlack = 20 * time.Millisecond, 50

// stamped holds a frame's time stamp, and when it was taken by the system's clock: after one moment
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

// doorbellRecord looks at what the records say, at when the receive queue's was first written, and
// tries what the card makes of one that was written before.
func (s *session) doorbellRecord() (string, error) {
	send, recv := s.tap.newestQueues()
	posted, err := recv.readCounter(mlx5.DBRRecv)
	if err != nil {
		return "", err
	}
	told, err := send.readCounter(mlx5.DBRSend)
	if err != nil {
		return "", err
	}
	s.noteFact("receive",
		"%d WQEs posted, %d frames taken; the record said %d when the queue became "+
			"ready", posted, s.got, recv.atReady)
	s.noteFact("send", "%d blocks posted", told)
	switch ahead := posted - uint16(s.got); {
	case recv.atReady != 0:
		return "", fmt.Errorf("the record said %d when the queue became ready: cards differ in "+
			"whether they take that", recv.atReady)
	case s.got == 0:
		return "", skip("no frame came in that could show what the card makes of it")
	case ahead == 0 || int(ahead) > recv.ring.entries:
		return "", fmt.Errorf("the record says %d WQEs and %d frames came in: a ring of %d is not "+
			"between them", posted, s.got, recv.ring.entries)
	}
	early, err := s.earlyRecord()
	if err != nil {
		return "", fmt.Errorf("a queue whose record is written before it is ready: %w", err)
	}
	return "counts WQEs over 16 bits; written after the queue is ready it is taken, before " +
		early, nil
}

// earlyRecord makes a queue of its own, which takes copies of broadcasts, with a record that is
// written before the queue is ready, and says whether the card takes that.
func (s *session) earlyRecord() (string, error) {
	if s.cfg.OpenNode == nil {
		return "was not tried", nil
	}
	q, err := newBareQueue(s.cfg.OpenNode)
	if err != nil {
		return "", errors.Join(err, q.destroyAll())
	}
	said, err := s.tryEarly(q)
	return said, errors.Join(err, q.destroyAll())
}

func (s *session) tryEarly(q *bareQueue) (string, error) {
	took, err := s.broadcastTo(q)
	if err != nil || took {
		return "it is taken, too", err
	}
	q.postBuffers(1)
	if took, err = s.broadcastTo(q); err != nil || took {
		return "it is ignored until it is written again", err
	}
	return "", fmt.Errorf("no frame came, neither with a record written before nor after")
}

// broadcastTo sends a broadcast, of which the device gets a copy, and reports whether the bare
// queue did.
func (s *session) broadcastTo(q *bareQueue) (bool, error) {
	before := q.completions()
	if err := s.checkCopied(); err != nil {
		return false, err
	}
	return s.awaitFor(s.cfg.Patience/4, func() bool { return q.completions() > before }), nil
}

// completionCounters goes around both rings once and looks at how completions name descriptors:
// by a counter that runs on (16 bits), or by the place in the ring.
func (s *session) completionCounters() (string, error) {
	if s.source == nil {
		return "", skip("no frames come in")
	}
	for range ringSize + 6 {
		if _, _, err := s.receiveOne(); err != nil {
			return "", fmt.Errorf("after %d frames: %w", s.got, err)
		}
		if err := s.sendOne(); err != nil {
			return "", err
		}
	}
	sq, rq := s.tap.newestQueues()
	recv, err1 := counterForm(s.lastCount, uint16(s.got-1), rq.ring.entries)
	send, err2 := counterForm(s.sendCount, s.sendIndex, sq.ring.entries)
	s.noteFact("receive", "wqe_counter %d for frame %d", s.lastCount, s.got-1)
	s.noteFact("send", "wqe_counter %d for the WQE with index %d", s.sendCount, s.sendIndex)
	if err := errors.Join(err1, err2); err != nil {
		return "", err
	}
	return fmt.Sprintf("wqe_counter of received frames is %s, of sent ones %s", recv, send), nil
}

// counterForm says which form of counter got is, where the descriptor's running index is n.
func counterForm(got, n uint16, ring int) (string, error) {
	switch place := n % uint16(ring); {
	case got == n && got == place:
		return "either form", nil
	case got == n:
		return "a counter that runs on", nil
	case got == place:
		return "the place in the ring", nil
	}
	return "", fmt.Errorf("wqe_counter is %d, neither the count %d nor its place in a ring of %d",
		got, n, ring)
}

// sendOne sends one frame and takes its completion.
func (s *session) sendOne() error {
	p, err := s.postQuietly(markedFrame(nearest, s.dev.MAC(), s.nextSeq(), minFrame))
	if err != nil {
		return err
	}
	cqe, err := s.completion()
	if err != nil {
		return err
	}
	s.sendIndex, s.sendCount = uint16(mlx5.CtrlIndex.Get(p.bytes)), cqe.WQECounter()
	if _, err := counterForm(s.sendCount, s.sendIndex, p.ring.entries); err != nil {
		return err
	}
	if n := s.dev.Tx(0).Reclaim(); n != 1 {
		return fmt.Errorf("the driver made %d packets of a completion: %s", n, cqe.String())
	}
	return nil
}

// Frames of the compression check: several passes over a completion ring of ringSize entries,
// whole, though eight or more frames share an entry, in bursts that the ring holds.
const (
	burst  = 32
	bursts = 32
)

// compression receives more frames than the completion ring has entries for, in bursts that are
// alike, so that their completions come compressed; none may be missing, doubled or out of order.
func (s *session) compression() (string, error) {
	if s.source == nil {
		return "", skip("no frames come in")
	}
	for _, f := range s.dev.Features() {
		if f.Name == "completion compression" && !f.On {
			return "", skip("off: " + f.Why)
		}
	}
	before := s.dev.Stats().Rx[0]
	for i := range bursts {
		if err := s.receiveBurst(); err != nil {
			return "", fmt.Errorf("burst %d of %d: %w", i+1, bursts, err)
		}
	}
	after := s.dev.Stats().Rx[0]
	_, recv := s.tap.newestQueues()
	compressed := after.Compressed - before.Compressed
	s.noteFact("frames", "%d, of which %d compressed; ring of %d completions", bursts*burst,
		compressed,
		recv.cq.entries)
	switch {
	case after.Drops != before.Drops || after.Resets != before.Resets:
		return "", fmt.Errorf("the driver refused completions: %+v, and reset the queue %d times",
			after.Drops, after.Resets-before.Resets)
	case compressed == 0:
		return "", skip("on, and no completion came compressed: the frames came one by one")
	}
	return fmt.Sprintf("%d frames came in order, %d of them compressed", bursts*burst,
		compressed), nil
}

// receiveBurst sends a burst and wants it in order, whole.
func (s *session) receiveBurst() error {
	first, err := s.toCard(s.dev.MAC(), burst, minFrame)
	if err != nil {
		return err
	}
	seqs := s.fromCard(burst, func(*dv.Packet) {})
	if len(seqs) < burst {
		return fmt.Errorf("%d of %d frames came in %v", len(seqs), burst, s.cfg.Patience)
	}
	for i, seq := range seqs {
		if want := first + uint32(i); seq != want {
			return fmt.Errorf("frame %d came in the place of %d", seq-first, i)
		}
	}
	return nil
}

// Long enough not to fit its descriptor, so that the card has to fetch it by an lkey.
const fetchedFrame = 600

// sendError changes the lkey of a posted descriptor to one that nobody has. The card must answer
// with an error completion, the driver replace the queue, and the next frame go.
func (s *session) sendError() (string, error) {
	before := s.dev.Stats().Tx[0]
	p, err := s.postQuietly(markedFrame(nearest, s.dev.MAC(), s.nextSeq(), fetchedFrame))
	if err != nil {
		return "", err
	}
	wqe := p.bytes
	data := int(mlx5.CtrlDS.Get(wqe))*mlx5.DSSize - mlx5.DataSegSize
	lkey := uint32(mlx5.DataLKey.Get(wqe[data:]))
	// where the lkey is in a data segment
	if err := writeMemory(p.byteAddr(data+4),
		binary.BigEndian.AppendUint32(nil, ^lkey)); err != nil {
		return "", err
	}
	cqe, err := s.completion()
	s.noteWQE(p)
	s.noteFact("WQE, data segment", "%s", mlx5.DataLayout.String(wqe[data:]))
	if err != nil {
		return "", fmt.Errorf("a WQE with a wrong lkey: %w", err)
	}
	s.noteCQE("CQE", cqe[:])
	if cqe.Opcode() != mlx5.CQEReqErr {
		return "", fmt.Errorf("a WQE with a wrong lkey was completed as %s", cqe.String())
	}
	if err := s.checkRecovery(before.Resets); err != nil {
		return "", err
	}
	return fmt.Sprintf("a wrong lkey gave %q, the queue was replaced and the next frame went",
		cqe.Syndrome()), nil
}

// checkRecovery has the driver find the error, and sends a frame through the new queue.
func (s *session) checkRecovery(resets uint64) error {
	q := s.dev.Tx(0)
	if !s.awaitDone(func() bool {
		q.Reclaim()
		q.Check()
		return s.dev.Stats().Tx[0].Resets > resets
	}) {
		return fmt.Errorf("the driver did not replace the queue in %v", s.cfg.Patience)
	}
	if err := s.sendOne(); err != nil {
		return fmt.Errorf("after the queue was replaced: %w", err)
	}
	if n := s.dev.Stats().Tx[0].Resets - resets; n != 1 {
		return fmt.Errorf("the queue was replaced %d times, once is enough", n)
	}
	return nil
}

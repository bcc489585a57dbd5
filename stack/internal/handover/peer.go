package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// Two processes talk over a unix socket that keeps messages apart (SOCK_SEQPACKET). The first byte
// of each says what it is; JSON follows, or a frame.
//
//	newcomer                 the process before
//	hello ────────────────▶  it notes the connections that begin from here on
//	      ◀──────────────── ports   in host mode, with their sockets
//	      ◀──────────────── state
//	take  ────────────────▶  it delivers what it has received, and then
//	      ◀──────────────── flows   keeps these alone
//	      ◀──────────────── taken
//	mine  ────────────────▶  it drains
//	      ◀──────────────── frame   that begins one of the flows anew: it is the newcomer's
//	relay ◀───────────────▶ relay   a frame that came to the sender's rings: it is the other one's
//
// From the time of take to that of taken the newcomer holds back what may be its own. On rings it
// has the device lead the unicast frames to itself before take. The end of the connection is the
// end of either: the other one has all frames to itself again.
const (
	msgHello = 'h' // version
	msgPorts = 'p' // []Port, some of them, each with a descriptor
	msgState = 's' // state
	msgTake  = 't' // []uint16: ports of its UDP sockets
	msgFlows = 'l' // []flow, some of them
	msgTaken = 'k'
	msgMine  = 'm'
	msgFrame = 'f' // as rdma.Injector takes it
	msgRelay = 'r' // likewise

	msgRefused = 'R' // string: why, in the place of msgTaken
)

// version changes when messages do.
const version = 1

// flowsPerMessage says how many flows msgFlows has at most: less than MaxSent bytes.
const flowsPerMessage = 400

// answerTime says how long the other process may take for an answer.
const answerTime = 10 * time.Second

// state holds what a newcomer has to know.
type state struct {
	Version   int            `json:"version"`
	PID       int            `json:"pid"`
	MAC       string         `json:"mac"`
	Addresses []netip.Prefix `json:"addresses"`
	Backend   string         `json:"backend"` // of rdma.BackendKind, which is at work
	Host      bool           `json:"host"`    // as Config.Host
	// Filter holds the prefixes that are denied or allowed, as the stack writes them.
	Filter json.RawMessage `json:"filter,omitempty"`
}

// messageConn connects two processes in place of a connection of network unixpacket: each Write
// is a message, which one Read returns whole.
type messageConn interface {
	net.Conn
	// TryWrite is Write if that need not wait, and reports whether it was. Several goroutines may
	// call it at once, and must not be kept waiting.
	TryWrite(message []byte) bool
}

// peer is the connection to the other process.
type peer struct {
	conn  net.Conn
	try   func(kind byte, frame []byte) bool // sends a message without waiting, or not at all
	buf   []byte                             // of the reader
	ended chan struct{}                      // closed when there is nothing left to do for it

	reading  bool          // start was called
	closing  chan struct{} // closed by close
	once     sync.Once
	messages chan peerMessage // from read, which closes it
	err      error            // why read has ended; written before
}

// peerMessage is one that is no frame.
type peerMessage struct {
	kind byte
	body []byte
}

func newPeer(conn net.Conn) (*peer, error) {
	p := &peer{conn: conn, buf: make([]byte, 1+rdma.MaxSent), ended: make(chan struct{}),
		closing: make(chan struct{}), messages: make(chan peerMessage)}
	switch c := conn.(type) {
	case messageConn:
		p.try = func(kind byte, frame []byte) bool {
			return c.TryWrite(append([]byte{kind}, frame...))
		}
	case syscall.Conn:
		raw, err := c.SyscallConn()
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		p.try = func(kind byte, frame []byte) bool { return trySend(raw, kind, frame) }
	default:
		return nil, errors.Join(fmt.Errorf("%T does not keep messages apart: give a connection of "+
			"network unixpacket", conn), conn.Close())
	}
	return p, nil
}

// trySend sends a message over a socket that has room for it.
func trySend(raw syscall.RawConn, kind byte, frame []byte) (sent bool) {
	err := raw.Control(func(fd uintptr) {
		_, err := unix.SendmsgBuffers(int(fd), [][]byte{{kind}, frame}, nil, nil,
			unix.MSG_DONTWAIT)
		sent = err == nil
	})
	return err == nil && sent
}

// close ends the connection. It may be called again.
func (p *peer) close() error {
	p.once.Do(func() { close(p.closing) })
	if err := p.conn.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// start hands out what comes, until the connection ends: frames to a function, the rest to
// next.
func (p *peer) start(frame func(kind byte, frame []byte)) {
	p.reading = true
	go p.read(frame)
}

// stop ends the connection, and waits until nothing is handed out any more.
func (p *peer) stop() {
	p.close()
	if p.reading {
		for range p.messages {
		}
	}
}

func (p *peer) read(frame func(kind byte, frame []byte)) {
	defer close(p.messages)
	for {
		kind, body, err := p.receive()
		switch {
		case err != nil:
			p.err = err
			return
		case kind == msgFrame, kind == msgRelay:
			frame(kind, body)
			continue
		}
		select {
		case p.messages <- peerMessage{kind, slices.Clone(body)}:
		case <-p.closing:
			p.err = net.ErrClosed
			return
		}
	}
}

// next waits for a message that read has.
func (p *peer) next(ctx context.Context) (peerMessage, error) {
	select {
	case m, ok := <-p.messages:
		if !ok {
			return m, p.err
		}
		return m, nil
	case <-ctx.Done():
		return peerMessage{}, ctx.Err()
	}
}

// await waits for a message of one kind that read has, and decodes it into v unless that is nil.
func (p *peer) await(ctx context.Context, kind byte, v any) error {
	m, err := p.next(ctx)
	if err != nil {
		return err
	}
	return m.decode(kind, v)
}

// send sends a message, with v as JSON unless that is nil.
func (p *peer) send(kind byte, v any) error { return p.sendWith(kind, v, nil) }

// sendWith is send, with descriptors, which stay the caller's.
func (p *peer) sendWith(kind byte, v any, fds []int) error {
	b := []byte{kind}
	if v != nil {
		text, err := json.Marshal(v)
		if err != nil {
			return err
		}
		b = append(b, text...)
	}
	if len(fds) == 0 {
		_, err := p.conn.Write(b)
		return err
	}
	conn, ok := p.conn.(*net.UnixConn)
	if !ok {
		return errNoRights
	}
	_, _, err := conn.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
	return err
}

// relayFrame implements Relay of rdma.Steering.
func (p *peer) relayFrame(frame []byte) bool { return p.try(msgRelay, frame) }

// receive waits for the next message. The body is good until the next call.
func (p *peer) receive() (kind byte, body []byte, err error) {
	n, err := p.conn.Read(p.buf)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return 0, nil, err
	}
	return p.buf[0], p.buf[1:n], nil
}

// errNoRights is of a connection that carries no descriptors.
var errNoRights = errors.New("a hand-over of the host's own address needs a connection of " +
	"network unixpacket")

// receiveWith is receive of a message that may have descriptors, which are the caller's.
func (p *peer) receiveWith() (m peerMessage, fds []int, err error) {
	conn, ok := p.conn.(*net.UnixConn)
	if !ok {
		m.kind, m.body, err = p.receive()
		return m, nil, err
	}
	oob := make([]byte, unix.CmsgSpace(portsPerMessage*4))
	n, size, _, _, err := conn.ReadMsgUnix(p.buf, oob)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err == nil && size > 0 {
		fds, err = parseRights(oob[:size])
	}
	if err != nil {
		return m, nil, err
	}
	return peerMessage{p.buf[0], p.buf[1:n]}, fds, nil
}

// decode puts a message that must be of a kind into v, unless that is nil.
func (m peerMessage) decode(kind byte, v any) error {
	if m.kind != kind {
		return fmt.Errorf("the other process sends %q, want %q: it is of another version", m.kind,
			kind)
	}
	if v == nil {
		return nil
	}
	return json.Unmarshal(m.body, v)
}

// refusedError is why the other process does not hand over. It goes on as before.
type refusedError string

func (why refusedError) Error() string { return string(why) }

// refusal is that, or nil if the message is another.
func (m peerMessage) refusal() error {
	if m.kind != msgRefused {
		return nil
	}
	var why refusedError
	if err := m.decode(msgRefused, &why); err != nil {
		return err
	}
	return why
}

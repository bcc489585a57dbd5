// Command ntp answers NTP clients (RFC 5905, mode 3) on a slice of an RDMA port. The receive
// timestamp of an answer is the NIC's, where the device stamps completions, so that what a query
// waited in rings and queues is not in the client's offset; the transmit timestamp is the system's,
// or, for clients in interleaved mode (RFC 9769), the NIC's of the answer before.
// The system's clock has to be right: by PTP, or by chrony with a receiver.
//
//	sudo $(which go) run ./examples/ntp -device sim
//	chronyd -Q -t 5 'server 192.0.2.10 iburst'     # says the offset, and sets nothing
//
// On a ConnectX: -device mlx5_0 -address ADDRESS/LENGTH.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/rdma-netstack/rdma-netstack/examples/internal/device"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/packets"
)

func main() {
	name := flag.String("device", "mlx5_0", device.Help)
	address := flag.String("address", device.Address, "our address and its prefix length")
	stratum := flag.Int("stratum", 1, "how far the system's clock is from a reference, 1 to 15")
	source := flag.String("source", "PPS", "what sets the system's clock, up to 4 letters")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *name, *address, *stratum, *source); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, name, address string, stratum int, source string) (err error) {
	if stratum < 1 || stratum > 15 || len(source) > 4 {
		return fmt.Errorf("stratum %d of %q: want 1 to 15, and up to 4 letters", stratum, source)
	}
	addr, err := netip.ParsePrefix(address)
	if err != nil {
		return err
	}
	nic, done, err := device.Config(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	st, err := stack.Open(ctx, stack.Config{NIC: nic, Addresses: []netip.Prefix{addr}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	log.Printf("serving on %s:123", addr.Addr())
	return serve(ctx, st, &responder{stratum: byte(stratum), source: source, now: time.Now})
}

// serve answers until ctx ends.
func serve(ctx context.Context, st *stack.Stack, r *responder) error {
	c, err := st.ListenUDP("udp", &net.UDPAddr{Port: 123})
	if err != nil {
		return err
	}
	if err := c.SetReceiveTimestamps(true); err != nil {
		return errors.Join(err, c.Close())
	}
	stop := context.AfterFunc(ctx, func() { c.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := c.SetTransmitTimestamps(stack.TimestampTxHardware | stack.TimestampTxSoftware |
		stack.TimestampRawHardware | stack.TimestampSoftware); err != nil {
		return errors.Join(err, c.Close())
	}
	var noting sync.WaitGroup
	noting.Go(func() { r.sent.noteAll(c) })
	defer noting.Wait()
	err = c.ServePackets(r.answerAll)
	if ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	return errors.Join(err, c.Close())
}

// responder makes answers. All queues use it; what changes has a lock.
type responder struct {
	stratum byte
	source  string
	now     func() time.Time
	sent    history
}

// remembered says how many answers a history knows.
const remembered = 1 << 16

// history knows when answers left, by their receive timestamps.
type history struct {
	mu    sync.Mutex
	left  map[[8]byte]time.Time // nil: none yet
	order [remembered][8]byte   // their keys, in a ring
	next  int                   // of order
}

// noteAll notes when the answers left that c sends, until it is closed or its read deadline.
func (h *history) noteAll(c *stack.UDPConn) {
	// Of a read of the error queue the first control message is SCM_TIMESTAMPING: a header, and the
	// stamps of the system and, behind an unused one, the NIC, each of seconds and nanoseconds.
	const system, nic = 16, 16 + 32
	b, oob := make([]byte, 2048), make([]byte, 256)
	for {
		n, _, _, err := c.ReadErrorQueue(b, oob)
		if err != nil {
			return
		}
		at := system
		if binary.NativeEndian.Uint64(oob[nic:]) != 0 {
			at = nic
		}
		if n >= length {
			h.note([8]byte(b[n-length+atReceive:]),
				time.Unix(int64(binary.NativeEndian.Uint64(oob[at:])),
					int64(binary.NativeEndian.Uint64(oob[at+8:]))))
		}
	}
}

func (h *history) note(received [8]byte, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.left == nil {
		h.left = make(map[[8]byte]time.Time)
	}
	delete(h.left, h.order[h.next])
	h.left[received], h.order[h.next] = at, received
	h.next = (h.next + 1) % remembered
}

// find returns when the answer left that had this receive timestamp.
func (h *history) find(received [8]byte) (at time.Time, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, ok = h.left[received]
	return at, ok
}

// answerAll implements packets.Handler.
func (r *responder) answerAll(_ int, ps []packets.Packet) {
	for i := range ps {
		p := &ps[i]
		p.Reply = r.answer(p.Payload, p.At, p.Reply)
	}
}

// Offsets in a packet of RFC 5905 section 7.3, and its length without extensions.
const (
	atStratum   = 1
	atPoll      = 2
	atPrecision = 3
	atRefID     = 12
	atReference = 16
	atOrigin    = 24
	atReceive   = 32
	atTransmit  = 40
	length      = 48
)

const (
	client, server = 3, 4 // modes
	precision      = 0xec // 2^-20 s
	sinceReference = 16 * time.Second
)

// answer appends the answer to a query that came at a time; nothing to what is no query.
func (r *responder) answer(query []byte, came time.Time, out []byte) []byte {
	if len(query) < length || query[0]&7 != client || query[0]>>3&7 == 0 || query[0]>>3&7 > 4 {
		return nil
	}
	var a [length]byte
	a[0] = query[0]&0x38 | server // no leap second, the version asked for
	a[atStratum], a[atPoll], a[atPrecision] = r.stratum, query[atPoll], precision
	copy(a[atRefID:atReference], r.source)
	copy(a[atOrigin:atReceive], query[atTransmit:length])
	putTime(a[atReceive:], came)
	now := r.now()
	putTime(a[atReference:], now.Add(-sinceReference).Truncate(sinceReference))
	putTime(a[atTransmit:], now)
	// RFC 9769 section 2: a client in interleaved mode names the answer before by its receive
	// timestamp, and wants to know when that left
	if !bytes.Equal(query[atReceive:atTransmit], query[atTransmit:length]) {
		if left, ok := r.sent.find([8]byte(query[atOrigin:])); ok {
			copy(a[atOrigin:atReceive], query[atReceive:atTransmit])
			putTime(a[atTransmit:], left)
		}
	}
	return append(out, a[:]...)
}

// putTime writes a time as seconds since 1900 and their fraction, each of 32 bits.
func putTime(b []byte, t time.Time) {
	const since1900 = 2208988800
	binary.BigEndian.PutUint32(b, uint32(t.Unix()+since1900))
	binary.BigEndian.PutUint32(b[4:], uint32(uint64(t.Nanosecond())<<32/uint64(time.Second)))
}

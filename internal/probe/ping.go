package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"time"
)

// PingResult holds what came back of a number of echo requests.
type PingResult struct {
	Sent, Received int
	Average        time.Duration // round trip
}

func (p PingResult) String() string {
	return fmt.Sprintf(
		"%d of %d answered, %.2f ms",
		p.Received,
		p.Sent,
		float64(p.Average.Microseconds())/1000,
	)
}

const (
	pingInterval = 200 * time.Millisecond // the shortest that ping allows everyone
	pingWait     = time.Second            // for the last answer
)

// Ping sends count echo requests. No answer at all is not an error.
func (c *Client) Ping(ctx context.Context, to netip.Addr, count int) (PingResult, error) {
	if _, ok := c.programs["ping"]; ok {
		return c.pingProgram(ctx, to, count)
	}
	return c.pingSocket(ctx, to, count)
}

var (
	pingReceived = regexp.MustCompile(`(\d+) (?:packets )?received`)
	pingAverage  = regexp.MustCompile(`= [\d.]+/([\d.]+)/`) // rtt min/avg/max
)

func (c *Client) pingProgram(ctx context.Context, to netip.Addr, count int) (PingResult, error) {
	var out bytes.Buffer
	err := c.runProgram(ctx, nil, &out, "ping", "-n", "-c", strconv.Itoa(count),
		"-i", fmt.Sprint(pingInterval.Seconds()), "-W", fmt.Sprint(pingWait.Seconds()), to.String())
	m := pingReceived.FindSubmatch(out.Bytes())
	if m == nil {
		return PingResult{}, errors.Join(err,
			fmt.Errorf("ping printed %q", firstLine(out.String())))
	}
	p := PingResult{Sent: count}
	p.Received, _ = strconv.Atoi(string(m[1]))
	if m := pingAverage.FindSubmatch(out.Bytes()); m != nil {
		ms, _ := strconv.ParseFloat(string(m[1]), 64)
		p.Average = time.Duration(ms * float64(time.Millisecond))
	}
	return p, nil
}

const echoHeader = 8 // bytes

// echoKind has the numbers in which ICMP for IPv4 (RFC 792) and IPv6 (RFC 4443) differ.
type echoKind struct {
	network        string
	request, reply byte
}

func kindFor(to netip.Addr) echoKind {
	if to.Is4() {
		return echoKind{"ip4:icmp", 8, 0}
	}
	return echoKind{"ip6:ipv6-icmp", 128, 129}
}

func (c *Client) pingSocket(ctx context.Context, to netip.Addr, count int) (PingResult, error) {
	kind := kindFor(to)
	conn, err := c.net.ListenPacket(kind.network, "")
	if err != nil {
		return PingResult{}, fmt.Errorf("open raw ICMP socket: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()

	p, total := PingResult{Sent: count}, time.Duration(0)
	id := uint16(os.Getpid())
	for seq := range count {
		sent := time.Now()
		if _, err := conn.WriteTo(echoRequest(kind, id, uint16(seq)),
			&net.IPAddr{IP: to.AsSlice()}); err != nil {
			return p, fmt.Errorf("ping %s: %w", to, err)
		}
		rtt, err := awaitEcho(conn, kind, id, uint16(seq), sent)
		switch {
		case err == nil:
			p.Received++
			total += rtt
			p.Average = total / time.Duration(p.Received)
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return p, fmt.Errorf("ping %s: %w", to, err)
		}
	}
	return p, ctx.Err()
}

func echoRequest(kind echoKind, id, seq uint16) []byte {
	b := make([]byte, 64)
	b[0] = kind.request
	binary.BigEndian.PutUint16(b[4:], id)
	binary.BigEndian.PutUint16(b[6:], seq)
	for i := range b[echoHeader:] {
		b[echoHeader+i] = byte(i) ^ byte(seq)
	}
	if kind.network == "ip4:icmp" { // the kernel fills in the other one, which covers addresses too
		binary.BigEndian.PutUint16(b[2:], inetChecksum(b))
	}
	return b
}

// awaitEcho returns when the answer to this request, payload and all, is there.
func awaitEcho(
	conn net.PacketConn,
	kind echoKind,
	id, seq uint16,
	sent time.Time,
) (time.Duration, error) {
	want := echoRequest(kind, id, seq)
	buf := make([]byte, 1500)
	conn.SetReadDeadline(sent.Add(pingWait))
	for {
		n, _, err := conn.ReadFrom(buf)
		if err != nil {
			return 0, err
		}
		if n == len(want) && buf[0] == kind.reply && bytes.Equal(buf[4:n], want[4:]) {
			return time.Since(sent), nil
		}
	}
}

// inetChecksum returns the Internet checksum of RFC 1071.
func inetChecksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

package dnsd

import (
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/internal/random"
)

// DefaultResponseRate counts the answers per second that a prefix gets over UDP when
// Config.ResponseRate is 0.
const DefaultResponseRate = 200

// limitBuckets bounds about how many prefixes are counted separately.
const limitBuckets = 1 << 15

// limiter bounds the answers over UDP to each prefix, /24 of IPv4 and /56 of IPv6, so that queries
// with a forged source address cannot flood a victim. A prefix has a burst of one second's answers;
// above its rate every second query gets an empty answer with TC, so that a real client repeats it
// over TCP, and the others get none. Loopback is not limited. All methods may be called from any
// goroutine.
type limiter struct {
	interval int64 // ns between answers; 0: no limit
	key      random.HashKey
	clock    clock.Clock
	began    time.Time
	slip     atomic.Uint64
	// by hash of the prefix: the time at which the answers sent so far are due at the rate
	due []atomic.Int64
}

func newLimiter(perSecond int, c clock.Clock, r random.Source) *limiter {
	if perSecond < 0 {
		return &limiter{}
	}
	return &limiter{
		interval: int64(time.Second) / int64(perSecond),
		key:      r.HashKey(), clock: c, began: c.Now(),
		due: make([]atomic.Int64, limitBuckets),
	}
}

// limits reports whether there is a limit.
func (l *limiter) limits() bool { return l.interval != 0 }

// allowsAnswer reports whether from gets an answer, and if not, whether it is told to use TCP.
func (l *limiter) allowsAnswer(from asker) (answer, slip bool) {
	addr := from.addressOnly()
	if !l.limits() || !addr.IsValid() || addr.IsLoopback() {
		return true, false
	}
	prefix := prefixOf(addr).Addr().As16()
	due := &l.due[l.key.Bytes(prefix[:])%limitBuckets]
	now := int64(l.clock.Since(l.began))
	for {
		old := due.Load()
		next := max(old, now) + l.interval
		if next > now+int64(time.Second) {
			return false, l.slip.Add(1)%2 == 0
		}
		if due.CompareAndSwap(old, next) {
			return true, false
		}
	}
}

// prefixOf returns the network that counts as one client.
func prefixOf(a netip.Addr) netip.Prefix {
	bits := 56
	if a.Is4() {
		bits = 24
	}
	p, _ := a.Prefix(bits) // no error: the length fits
	return p
}

// addressOnly returns the address without its port, or the zero Addr when the conn gives none.
func (a asker) addressOnly() netip.Addr {
	switch addr := a.addr.(type) {
	case nil:
		return a.addrPort.Addr().Unmap()
	case *net.UDPAddr:
		return addr.AddrPort().Addr().Unmap()
	case *net.TCPAddr:
		return addr.AddrPort().Addr().Unmap()
	default:
		at, _ := netip.ParseAddrPort(addr.String())
		return at.Addr().Unmap()
	}
}

// optRecord returns the OPT record of an answer without options: it says only that EDNS is
// supported (RFC 6891).
var optRecord = [11]byte{0, 0, 41, udpSize >> 8, udpSize & 0xff}

// truncated writes an empty answer with TC to query into out; nil when the query is not a simple
// one.
func truncated(query, out []byte) []byte {
	n := headerLen + questionLen(query)
	if n == headerLen || query[2]&0xf8 != 0 || query[4] != 0 || query[5] != 1 {
		return nil
	}
	out = append(out[:0], query[:n]...)
	out[2] = 0x82 | query[2]&1 // QR and TC, RD as in the query
	out[3] = 0
	clear(out[6:12])
	if query[10] != 0 || query[11] != 0 {
		out[11] = 1
		out = append(out, optRecord[:]...)
	}
	return out
}

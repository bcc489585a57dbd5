package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// load is what a client sends to a server, in Go. Kinds are in loadKinds.
type load struct {
	Kind    string
	Seconds float64
	Flows   int // connections
	Rate    int // of paced: requests per second, all connections together
	Size    int // of udp: bytes of payload
}

// time is how long the load lasts.
func (l *load) time() time.Duration { return time.Duration(l.Seconds * float64(time.Second)) }

// runner is the state of a load in progress.
type runner struct {
	*load
	host host
	ctx  context.Context
	at   func(port int) string // address of a service
}

var loadKinds = map[string]func(*runner) (metrics, error){
	"up": (*runner).up, "down": (*runner).down, "http": (*runner).http, "paced": (*runner).paced,
	"rtt": (*runner).rtt, "udp up": (*runner).udpUp, "udp down": (*runner).udpDown,
	"udp echo": (*runner).udpEcho,
	"idle":     (*runner).idle,
}

// grace is the most that a load may exceed its time.
const grace = 20 * time.Second

func (l *load) run(h host) (metrics, error) {
	fn := loadKinds[l.Kind]
	if fn == nil {
		return nil, fmt.Errorf("no load %q", l.Kind)
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.time()+grace)
	defer cancel()
	m, err := fn(&runner{l, h, ctx, func(port int) string {
		return netip.AddrPortFrom(serverPrefix.Addr(), uint16(port)).String()
	}})
	if err != nil {
		return nil, fmt.Errorf("load %q: %w", l.Kind, err)
	}
	return m, nil
}

// dial opens Flows connections to a service.
func (r *runner) dial(port int) (conns []net.Conn, err error) {
	for range r.Flows {
		c, err := r.host.Dial(r.ctx, "tcp", r.at(port))
		if err != nil {
			closeAll(conns)
			return nil, err
		}
		deadline, _ := r.ctx.Deadline()
		_ = c.SetDeadline(deadline)
		conns = append(conns, c)
	}
	return conns, nil
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		c.Close()
	}
}

// latencies are durations in microseconds.
type latencies []float64

func (l *latencies) add(d time.Duration) { *l = append(*l, float64(d.Nanoseconds())/1e3) }

// percentile sorts its argument.
func (l latencies) percentile(p float64) float64 {
	if len(l) == 0 {
		return 0
	}
	slices.Sort(l)
	return l[min(len(l)-1, int(p/100*float64(len(l))))]
}

// put writes the usual percentiles as PREFIX_p50 and so on.
func (l latencies) put(m metrics, prefix string) {
	for _, p := range []float64{50, 99, 99.9} {
		m[prefix+"_p"+strconv.FormatFloat(p, 'f', -1, 64)] = l.percentile(p)
	}
}

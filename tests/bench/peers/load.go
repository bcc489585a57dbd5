package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"
)

// load is what a client sends to a server, in Go. Kinds are in loadKinds.
type load struct {
	Kind    string
	Seconds float64
	Flows   int  // connections
	Rate    int  // of paced: requests per second, all connections together; of sfu: packets
	Size    int  // of udp and sfu: bytes of payload; of pieces: bytes per write, 0 for a file
	Each    int  // of udp down: datagrams in each write, 1 if it is 0
	Port    int  // of http, http3, udp echo and sfu: the service's, if there are several
	TLS     bool // the service over TLS
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
	"up": (*runner).up, "down": (*runner).down, "pieces": (*runner).pieces,
	"http": (*runner).http, "paced": (*runner).paced,
	"rtt": (*runner).rtt, "udp up": (*runner).udpUp, "udp down": (*runner).udpDown,
	"udp echo": (*runner).udpEcho, "sfu": (*runner).sfu,
	"idle": (*runner).idle, "http2": (*runner).http2,
	"http3": (*runner).http3, "http3 up": (*runner).http3Up, "http3 down": (*runner).http3Down,
	"grpc": (*runner).grpc, "grpc pull": (*runner).grpcPull, "many": (*runner).many,
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
	m, err := fn(&runner{l, h, ctx, func(port int) string { return at(serverPrefix, port) }})
	if err != nil {
		return nil, fmt.Errorf("load %q: %w", l.Kind, err)
	}
	return m, nil
}

// at is the address of a service.
func at(p netip.Prefix, port int) string {
	return netip.AddrPortFrom(p.Addr(), uint16(port)).String()
}

// dial opens Flows connections to a service.
func (r *runner) dial(port int) (conns []net.Conn, err error) {
	if r.TLS {
		port += overTLS
	}
	for range r.Flows {
		c, err := r.host.Dial(r.ctx, "tcp", r.at(port))
		if err != nil {
			closeAll(conns)
			return nil, err
		}
		deadline, _ := r.ctx.Deadline()
		_ = c.SetDeadline(deadline)
		if r.TLS {
			c = tls.Client(c, clientTLS())
		}
		conns = append(conns, c)
	}
	return conns, nil
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		c.Close()
	}
}

// together uses n connections at once, and adds up the requests' latencies.
func (r *runner) together(n int, use func(i int, end time.Time, l *latencies) error) (metrics,
	error) {
	var wg sync.WaitGroup
	took, errs := make([]latencies, n), make([]error, n)
	start := time.Now()
	for i := range n {
		wg.Go(func() { errs[i] = use(i, start.Add(r.time()), &took[i]) })
	}
	wg.Wait()
	wall := time.Since(start).Seconds()
	var all latencies
	for i := range n {
		if errs[i] != nil && errs[i] != io.EOF {
			return nil, errs[i]
		}
		all = append(all, took[i]...)
	}
	m := metrics{"requests": float64(len(all)), "rate": float64(len(all)) / wall}
	all.put(m, "us")
	return m, nil
}

// repeat sends requests, each when the one before it on the same connection is answered.
func (r *runner) repeat(n int, request func(i int) error) (metrics, error) {
	return r.together(n, func(i int, end time.Time, l *latencies) error {
		for now := time.Now(); now.Before(end); {
			if err := request(i); err != nil {
				return err
			}
			done := time.Now()
			l.add(done.Sub(now))
			now = done
		}
		return nil
	})
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

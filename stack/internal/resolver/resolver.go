// Package resolver looks host names up by the rules of package net's pure-Go resolver, over
// connections that its user dials. The order of /etc/hosts and DNS is that of nsswitch.conf;
// resolv.conf gives servers, search domains and options, and is read again when it changes.
//
// Package net's own resolver takes all of that from the machine's files, which on a stack beside
// Linux is another network's configuration. The tests of package net run on this one
// (gonet_test.go).
package resolver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http/httptrace"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// Config holds what a Resolver works with.
type Config struct {
	Clock clock.Clock

	// Servers are asked before all others.
	Servers []netip.Addr

	// Learned returns the servers that the network announces, which are asked last. It may be
	// called from any goroutine.
	Learned func() []netip.Addr

	// Dial connects to a server, "address:port", on "udp" or "tcp".
	Dial func(ctx context.Context, network, server string) (net.Conn, error)

	Files Files
}

// Files holds the paths of the files that a Resolver reads.
type Files struct {
	// ResolvConf is in the format of resolv.conf(5). New fails if it cannot be read.
	ResolvConf string

	// Machine are files of the same format for the machine. Of these the first that names a server
	// not on the machine's loopback counts, as systemd-resolved writes two. They are read if
	// ResolvConf is empty, and may be missing.
	Machine []string

	// Hosts and NSSwitch are in the formats of hosts(5) and nsswitch.conf(5). They are the
	// machine's by default, and may be missing.
	Hosts, NSSwitch string
}

// errNoDNS explains a failed lookup of a stack without resolvers.
var errNoDNS = errors.New("no DNS server is known: set DNS or ResolvConf in stack.Config")

// Resolver looks host names up. Its methods may be called from any goroutine.
type Resolver struct {
	cfg    Config
	conf   resolvConf
	hosts  hostsFile
	order  orderFile
	shared flights
	asked  atomic.Uint32 // counts the questions, for rotate
}

// New returns a Resolver. It reads resolv.conf, and fails if Files.ResolvConf cannot be read.
func New(cfg Config) (*Resolver, error) {
	if cfg.Files.Hosts == "" {
		cfg.Files.Hosts = "/etc/hosts"
	}
	if cfg.Files.NSSwitch == "" {
		cfg.Files.NSSwitch = "/etc/nsswitch.conf"
	}
	r := &Resolver{cfg: cfg}
	r.conf.own, r.conf.machine = cfg.Files.ResolvConf, cfg.Files.Machine
	if err := r.conf.init(cfg.Clock); err != nil {
		return nil, fmt.Errorf("read resolvers: %w (set DNS instead, or correct ResolvConf)", err)
	}
	r.hosts.path, r.order.path = cfg.Files.Hosts, cfg.Files.NSSwitch
	return r, nil
}

// Servers returns the addresses of the servers in the order in which they are asked.
func (r *Resolver) Servers() []netip.Addr {
	var all []netip.Addr
	for _, s := range r.config().servers {
		if at, err := netip.ParseAddrPort(s); err == nil {
			all = append(all, at.Addr().Unmap())
		}
	}
	return all
}

// config returns the configuration as of now, with every server there is.
func (r *Resolver) config() *dnsConfig {
	r.conf.update(r.cfg.Clock)
	conf := r.conf.dnsConfig.Load()
	var first, last []netip.Addr
	if first = r.cfg.Servers; r.cfg.Learned != nil {
		last = r.cfg.Learned()
	}
	return conf.with(first, last)
}

// firstServer returns the index of the server to ask first.
func (r *Resolver) firstServer(conf *dnsConfig) int {
	if conf.rotate && len(conf.servers) > 0 {
		return int((r.asked.Add(1) - 1) % uint32(len(conf.servers)))
	}
	return 0
}

// LookupNetIP returns the addresses of a host name or of an address literal. Network is "ip", "ip4"
// or "ip6", and only records of its families are asked for; /etc/hosts may add addresses of the
// other one. A name that DNS must not be asked for, such as one below .onion, has no addresses and
// is no error, as in package net. Concurrent lookups of one name share one set of questions. The
// hooks of net/http/httptrace in ctx are called. The error is a *net.DNSError.
func (r *Resolver) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, nil
	}
	if host == "" {
		return nil, dnsError(errNoSuchHost, host, "")
	}
	trace := httptrace.ContextClientTrace(ctx)
	if trace != nil && trace.DNSStart != nil {
		trace.DNSStart(httptrace.DNSStartInfo{Host: host})
	}
	ips, shared, err := r.shared.do(ctx, network+" "+host,
		func(ctx context.Context) ([]netip.Addr, error) {
			return r.lookup(ctx, network, host, r.order.of(r.cfg.Clock), nil)
		})
	var dns *net.DNSError
	if err != nil && !errors.As(err, &dns) {
		err = dnsError(fromContext(err), host, "")
	}
	if trace != nil && trace.DNSDone != nil {
		done := httptrace.DNSDoneInfo{Err: err, Coalesced: shared}
		for _, ip := range ips {
			done.Addrs = append(done.Addrs, net.IPAddr{IP: ip.AsSlice(), Zone: ip.Zone()})
		}
		trace.DNSDone(done)
	}
	return ips, err
}

// lookup looks a name up in an order; conf is that of now if it is nil.
func (r *Resolver) lookup(ctx context.Context, network, host string, order lookupOrder,
	conf *dnsConfig) ([]netip.Addr, error) {
	if order == filesDNS || order == onlyFiles {
		if ips := r.hosts.addrs(r.cfg.Clock, host); len(ips) > 0 {
			return ips, nil
		}
	}
	if isLocalhost(host) { // RFC 6761 section 6.3: never a question to DNS
		return []netip.Addr{netip.IPv6Loopback(), netip.AddrFrom4([4]byte{127, 0, 0, 1})}, nil
	}
	if order == onlyFiles || !isDomainName(host) {
		return nil, dnsError(errNoSuchHost, host, "")
	}
	if conf == nil {
		conf = r.config()
	}
	ips, err := r.lookupDNS(ctx, network, host, conf)
	if len(ips) > 0 {
		return ips, nil
	}
	if order == dnsFiles {
		if ips := r.hosts.addrs(r.cfg.Clock, host); len(ips) > 0 {
			return ips, nil
		}
	}
	return nil, err
}

func isLocalhost(host string) bool {
	name := strings.TrimSuffix(strings.ToLower(host), ".")
	return name == "localhost" || strings.HasSuffix(name, ".localhost")
}

// outcome holds what became of one question.
type outcome struct {
	answer answer
	err    error
}

// lookupDNS asks for each name that host may stand for, until one has an address. Of several types
// it keeps what came: one that fails does not take the other's addresses away.
func (r *Resolver) lookupDNS(ctx context.Context, network, host string,
	conf *dnsConfig) ([]netip.Addr, error) {
	types := []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA}
	switch {
	case strings.HasSuffix(network, "4"):
		types = types[:1]
	case strings.HasSuffix(network, "6"):
		types = types[1:]
	}
	var ips []netip.Addr
	var failure error
	for _, name := range conf.nameList(host) {
		for _, o := range r.askAll(ctx, conf, name, types) {
			found, err := o.answer.addrs(o.err, host)
			ips = append(ips, found...)
			// the error of the name as it was given matters most
			if err != nil && (failure == nil || name == host+"." || o.err == nil) {
				failure = err
			}
		}
		if len(ips) > 0 {
			return ips, nil
		}
	}
	return nil, named(failure, host)
}

// askAll asks for all types of a name, at the same time unless the configuration says
// single-request.
func (r *Resolver) askAll(ctx context.Context, conf *dnsConfig, name string,
	types []dnsmessage.Type) []outcome {
	all := make([]outcome, len(types))
	var asking sync.WaitGroup
	for i, t := range types {
		ask := func() { all[i].answer, all[i].err = r.ask(ctx, conf, name, t) }
		if conf.singleRequest || len(types) == 1 {
			ask()
		} else {
			asking.Go(ask)
		}
	}
	asking.Wait()
	return all
}

// named makes an error speak of the name that was asked for, rather than of one made with a search
// domain.
func named(err error, name string) error {
	var dns *net.DNSError
	if errors.As(err, &dns) {
		dns.Name = name
	}
	return err
}

// flights are the lookups under way, by what is looked up.
type flights struct {
	mu    sync.Mutex
	byKey map[string]*flight
}

// flight describes a lookup that several goroutines may wait for.
type flight struct {
	done    chan struct{} // closed when ips and err are set
	ips     []netip.Addr
	err     error
	waiting int // guarded by flights.mu
	cancel  context.CancelFunc
}

// do returns the result of look, and whether others got it too. Of concurrent calls with the same
// key one runs look; its context ends when nobody waits for the result.
func (f *flights) do(ctx context.Context, key string,
	look func(context.Context) ([]netip.Addr, error)) ([]netip.Addr, bool, error) {
	f.mu.Lock()
	one, shared := f.byKey[key]
	if !shared {
		own, cancel := context.WithCancel(context.WithoutCancel(ctx))
		one = &flight{done: make(chan struct{}), cancel: cancel}
		if f.byKey == nil {
			f.byKey = map[string]*flight{}
		}
		f.byKey[key] = one
		go func() {
			one.ips, one.err = look(own)
			f.mu.Lock()
			f.forget(key, one)
			f.mu.Unlock()
			close(one.done)
		}()
	}
	one.waiting++
	f.mu.Unlock()

	select {
	case <-one.done:
		return append([]netip.Addr(nil), one.ips...), shared, one.err
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if one.waiting--; one.waiting == 0 {
		f.forget(key, one)
	}
	return nil, shared, ctx.Err()
}

// forget ends what a lookup still does, and makes later calls with the same key look again. The
// caller holds f.mu.
func (f *flights) forget(key string, one *flight) {
	if f.byKey[key] == one {
		delete(f.byKey, key)
	}
	one.cancel()
}

//go:build gonet

package resolver

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// The names of package net that its tests use, in terms of this package. TestOfPackageNet compiles
// this file together with those tests.

type (
	Conn       = net.Conn
	PacketConn = net.PacketConn
	DNSError   = net.DNSError
	Error      = net.Error
	IPAddr     = net.IPAddr
	IP         = net.IP
	MX         = net.MX
	NS         = net.NS
	SRV        = net.SRV
)

const (
	useTCPOnly       = true
	useUDPOrTCP      = false
	maxDNSPacketSize = maxDatagram
)

var (
	errServerMisbehaving            = errMisbehaving
	errServerTemporarilyMisbehaving = errFailing
	defaultNS                       = []string{"127.0.0.1:53", "[::1]:53"}
	dnsWaitGroup                    sync.WaitGroup
	hostsFilePath                   = "/etc/hosts"
	getHostname                     = func() (string, error) { return "host", nil }
	DefaultResolver                 = &Resolver_{}
)

// Resolver_ stands for net.Resolver.
type Resolver_ struct {
	PreferGo, StrictErrors bool
	Dial                   func(ctx context.Context, network, address string) (net.Conn, error)

	once sync.Once
	r    *Resolver
}

// ours is the resolver of this package that the test is about.
func (r *Resolver_) ours() *Resolver {
	r.once.Do(func() {
		r.r = &Resolver{cfg: Config{Dial: r.Dial, Files: Files{ResolvConf: "/etc/resolv.conf"}}}
		r.r.order.path = "/etc/nsswitch.conf"
	})
	r.r.hosts.mu.Lock()
	if r.r.hosts.path != hostsFilePath {
		r.r.hosts.path, r.r.hosts.byName = hostsFilePath, nil
	}
	r.r.hosts.mu.Unlock()
	if systemOrder.set {
		r.r.order.mu.Lock()
		r.r.order.checked, r.r.order.order = time.Now().Add(time.Hour), systemOrder.order
		r.r.order.mu.Unlock()
	}
	conf := getSystemDNSConfig()
	r.r.conf.checking.TryLock() // the test's configuration is in force, whatever its file says
	r.r.conf.dnsConfig.Store(conf)
	return r.r
}

func (r *Resolver_) exchange(ctx context.Context, server string, q dnsmessage.Question,
	timeout time.Duration, useTCP, ad bool) (dnsmessage.Parser, dnsmessage.Header, error) {
	conf := &dnsConfig{useTCP: useTCP, trustAD: ad}
	a, err := r.ours().exchange(ctx, conf, server, q, timeout, conf.networks()...)
	return a.parser, a.header, err
}

func (r *Resolver_) tryOneName(ctx context.Context, conf *dnsConfig, name string,
	t dnsmessage.Type) (dnsmessage.Parser, string, error) {
	a, err := r.ours().ask(ctx, conf, name, t)
	return a.parser, a.server, err
}

func (r *Resolver_) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	return r.ours().LookupNetIP(ctx, network, host)
}

func (r *Resolver_) LookupIPAddr(ctx context.Context, host string) ([]IPAddr, error) {
	ips, err := r.LookupNetIP(ctx, "ip", host)
	return ipAddrs(ips), err
}

func ipAddrs(ips []netip.Addr) (list []IPAddr) {
	for _, ip := range ips {
		list = append(list, IPAddr{IP: ip.AsSlice(), Zone: ip.Zone()})
	}
	return list
}

func (r *Resolver_) LookupIP(ctx context.Context, network, host string) (list []IP, err error) {
	ips, err := r.LookupNetIP(ctx, network, host)
	for _, ip := range ips {
		list = append(list, ip.AsSlice())
	}
	return list, err
}

func (r *Resolver_) LookupHost(ctx context.Context, host string) (list []string, err error) {
	ips, err := r.LookupNetIP(ctx, "ip", host)
	for _, ip := range ips {
		list = append(list, ip.String())
	}
	return list, err
}

func (r *Resolver_) goLookupIPCNAMEOrder(ctx context.Context, network, name string,
	order lookupOrder, conf *dnsConfig) ([]IPAddr, dnsmessage.Name, error) {
	ips, err := r.ours().lookup(ctx, network, name, order, conf)
	return ipAddrs(ips), dnsmessage.Name{}, err
}

// All other types of records go through the bridge to package net.

func (r *Resolver_) LookupTXT(ctx context.Context, name string) ([]string, error) {
	return r.ours().Net().LookupTXT(ctx, name)
}

func (r *Resolver_) LookupMX(ctx context.Context, name string) ([]*MX, error) {
	return r.ours().Net().LookupMX(ctx, name)
}

func (r *Resolver_) LookupNS(ctx context.Context, name string) ([]*NS, error) {
	return r.ours().Net().LookupNS(ctx, name)
}

func (r *Resolver_) LookupSRV(ctx context.Context, service, proto, name string) (string, []*SRV,
	error) {
	return r.ours().Net().LookupSRV(ctx, service, proto, name)
}

func (r *Resolver_) LookupCNAME(ctx context.Context, name string) (string, error) {
	return r.ours().Net().LookupCNAME(ctx, name)
}

func (r *Resolver_) LookupAddr(ctx context.Context, addr string) ([]string, error) {
	return r.ours().Net().LookupAddr(ctx, addr)
}

func (r *Resolver_) lookupAddr(ctx context.Context, addr string) ([]string, error) {
	return r.LookupAddr(ctx, addr)
}

func (r *Resolver_) goLookupMX(ctx context.Context, name string) ([]*MX, error) {
	return r.LookupMX(ctx, name)
}

func (r *Resolver_) goLookupNS(ctx context.Context, name string) ([]*NS, error) {
	return r.LookupNS(ctx, name)
}

func (r *Resolver_) lookupTXT(ctx context.Context, name string) ([]string, error) {
	return r.LookupTXT(ctx, name)
}

func LookupCNAME(name string) (string, error) {
	return DefaultResolver.LookupCNAME(context.Background(), name)
}

func LookupSRV(service, proto, name string) (string, []*SRV, error) {
	return DefaultResolver.LookupSRV(context.Background(), service, proto, name)
}

func LookupMX(name string) ([]*MX, error) {
	return DefaultResolver.LookupMX(context.Background(), name)
}

func LookupNS(name string) ([]*NS, error) {
	return DefaultResolver.LookupNS(context.Background(), name)
}

func LookupAddr(addr string) ([]string, error) {
	return DefaultResolver.LookupAddr(context.Background(), addr)
}

// errMalformedDNSRecordsDetail is package net's text.
const errMalformedDNSRecordsDetail = "DNS response contained records which contain invalid names"

func Pipe() (Conn, Conn) { return net.Pipe() }

func dnsPacketRoundTrip(c Conn, id uint16, q dnsmessage.Question,
	query []byte) (dnsmessage.Parser, dnsmessage.Header, error) {
	a, err := datagramTrip(c, id, q, query)
	return a.parser, a.header, err
}

// resolverConfig stands for package net's, which the tests fill.
type resolverConfig struct {
	initOnce sync.Once
	resolvConf
}

var systemConfig resolverConfig

func (c *resolverConfig) init() {
	c.resolvConf.own = "/etc/resolv.conf"
	c.resolvConf.init(clock.Clock{})
}
func (c *resolverConfig) tryAcquireSema() bool { return c.checking.TryLock() }
func (c *resolverConfig) releaseSema()         { c.checking.Unlock() }

func getSystemDNSConfig() *dnsConfig {
	systemConfig.initOnce.Do(systemConfig.init)
	systemConfig.update(clock.Clock{})
	conf := *systemConfig.dnsConfig.Load()
	if len(conf.servers) == 0 {
		conf.servers = defaultNS
	}
	return &conf
}

func dnsReadConfig(path string) *dnsConfig {
	conf, _ := readConfig(path, getHostname)
	if len(conf.servers) == 0 {
		conf.servers = defaultNS
	}
	return conf
}

func dnsDefaultSearch() []string {
	name, err := getHostname()
	if err != nil {
		return nil
	}
	return domainOf(name)
}

func lookupStaticHost(name string) (list []string, canonical string) {
	h := hostsFile{path: hostsFilePath}
	for _, a := range h.addrs(clock.Clock{}, name) {
		list = append(list, a.String())
	}
	return list, ""
}

func absDomainName(name string) string { // without the change of case
	if key := hostsKey(name); len(key) > len(name) {
		return name + "."
	}
	return name
}

// The order of lookups.

type hostLookupOrder = lookupOrder

const (
	hostLookupFilesDNS = filesDNS
	hostLookupDNSFiles = dnsFiles
	hostLookupFiles    = onlyFiles
	hostLookupDNS      = onlyDNS
)

type nssOrder struct {
	set   bool
	order lookupOrder
}

var systemOrder nssOrder

func getSystemNSS() nssOrder                       { return systemOrder }
func setSystemNSS(order nssOrder, _ time.Duration) { systemOrder = order }

func nssStr(t *testing.T, text string) nssOrder {
	sources, err := hostsSources(text)
	if err != nil {
		t.Fatal(err)
	}
	return nssOrder{true, orderOf(sources)}
}

type systemFiles struct{}

func systemConf() systemFiles { return systemFiles{} }

func (systemFiles) hostLookupOrder(r *Resolver_, _ string) (lookupOrder, *dnsConfig) {
	return r.ours().order.of(clock.Clock{}), nil
}

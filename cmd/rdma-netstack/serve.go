package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/internal/logs"
	"github.com/rdma-netstack/rdma-netstack/internal/firewall"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// serveFlags holds the flags of all serve commands.
type serveFlags struct {
	device    string
	addresses []netip.Prefix
	sources   addressSources
	whole     []netip.Prefix // all addresses of these are ours
	gateways  []netip.Addr
	mac       net.HardwareAddr
	netdevMAC bool
	queues    queueCount
	rxMode    stack.RxMode
	striding  bool
	zeroCopy  bool
	spread    stack.Spread
	backend   stack.Backend
	xdp       stack.XDPOptions
	fallback  string
	maxOutage time.Duration
	mtu       int
	vlan      uint16
	dscp      uint8
	rates     rates
	filter    string   // FILE
	listen    []string // ADDRESS:PORT
	log       logFlags
	admin     string // ADDRESS:PORT of this machine
	// adminHosts are the names besides this machine's by which it may be asked
	adminHosts []string
	drain      time.Duration
	takeOver   string // a process id, auto, or ""
	// handOverToKernel has Linux accept new clients while the server drains
	handOverToKernel bool
	sim              simFlags
	confined         confinement
	debug            []string // what clients may ask for that is for debugging only
}

// addTo adds the flags that all serve commands share.
func (f *serveFlags) addTo(cmd *cobra.Command) {
	f.drain, f.maxOutage = 30*time.Second, 2*time.Minute
	addFlags(cmd, "The slice",
		opt("device", "NAME", &f.device, "RDMA device (mlx5_0), its network interface "+
			"(enp1s0f0), or sim: a software ConnectX in this process, which needs no hardware. "+
			"\"rdma-netstack devices\" lists the devices of this machine. An interface of another "+
			"make (eth0) is served through packet sockets", deviceOrNetdevNames),
		opt("backend", "NAME", &f.backend, "rings of an mlx5 device, packet "+
			"sockets on any Ethernet interface, xdp: AF_XDP sockets on an interface whose driver "+
			"has XDP, or auto: rings where there are any, else packet. "+
			"Packet sockets need CAP_NET_RAW, AF_XDP CAP_NET_ADMIN and CAP_BPF as well until it "+
			"serves; the machine itself cannot reach the slice through them, other hosts can. "+
			"--mac netdev and the software NIC have rings only. docs/hardware.md says what AF_XDP "+
			"gains and what it takes from Linux",
			backendWords),
		opt("xdp-send", "sockets|rings", &f.xdp.Send, "with --backend xdp: send by packet "+
			"sockets, for which the NIC or the kernel cuts TCP segments up, or by the rings of "+
			"AF_XDP, where this program does", oneOf("sockets", "rings")),
		opt("xdp-copy", "", &f.xdp.Copy, "with --backend xdp: have the kernel copy received "+
			"frames even where the driver could receive into this program's memory"),
		opt("fallback", "NAME", &f.fallback, "interface whose packet sockets carry the frames "+
			"while the device is away (removed, reset, failed), or none. Default: the interface "+
			"that the port's is a member of, such as a bond, or else the port's own",
			func() []string { return append(netdevNames(), "none") }),
		opt("max-outage", "TIME", &f.maxOutage, "how long the device may be away with nothing "+
			"in its place before connections end. The server goes on listening, and serves again "+
			"when the device is back. -1s: the server ends with its device"),
		opt("address", "CIDR", f.address, "IP address of the slice with its prefix length, such "+
			"as 192.0.2.10/24. Repeat the flag for more addresses, IPv4 or IPv6. Without a prefix "+
			"length (192.0.2.10) the port's network interface supplies it, and the router, and "+
			"/etc/resolv.conf the resolvers. Instead of an address:\n"+
			"dhcp, DHCPv4;\ndhcp6, DHCPv6;\nslaac, IPv6 router advertisements;\n"+
			"auto, all three, DHCPv6 only if a router advertises it;\n"+
			"host, the addresses of the network interface itself, and its MAC: the ports of "+
			"--listen are this server's there, all else stays Linux's. Programs of this machine "+
			"and its containers reach the server, too. Rules by port lead their frames to rings "+
			"where there are some.\n"+
			"A router or resolvers that these do not supply come from the port's network "+
			"interface and /etc/resolv.conf. Default with sim: 192.0.2.10/24 and "+
			"2001:db8::10/64. If this machine uses those subnets, the first unused ones of the "+
			"ranges for documentation, benchmarks and private networks", addressWords),
		opt("local-prefix", "PREFIX", f.localPrefix, "a prefix, such as 198.51.100.0/24, all of "+
			"whose addresses are the slice's beside --address, and are answered from: routers "+
			"send what is for it to an --address. Repeat the flag for more prefixes, IPv4 or "+
			"IPv6. docs/recipes/anycast.md"),
		opt("gateway", "ADDR", addrList(&f.gateways), "router for all destinations outside "+
			"these subnets. Repeat the flag for the other IP version. With addresses of /32 or "+
			"/128 it is taken to be on the link"),
		opt("mac", "MAC", macOrNetdev(&f.mac, &f.netdevMAC), "MAC address of the slice (default "+
			"a random one). The value netdev takes the port's own, for a virtual function that no "+
			"one else uses: Linux then receives no unicast frames on it", netdevWord),
		opt("queues", "N", &f.queues, "receive queues, each served by one goroutine; auto: half "+
			"as many as there are processors (GOMAXPROCS), 16 at most"),
		opt("spread", "load|all", &f.spread, "queues that get flows: as many as the load needs, "+
			"half as many as there are processors at most, or all"),
		opt("rx-mode", "MODE", &f.rxMode, "adaptive: poll for a short "+
			"time, then sleep until an interrupt. polling: never sleep; occupies one processor "+
			"per queue. interrupt: sleep whenever the queue is empty",
			oneOf("adaptive", "polling", "interrupt")),
		opt("striding", "", &f.striding, "striding receive rings, which a card packs many small "+
			"frames into, for floods of them; docs/performance.md says what they cost"),
		opt("zero-copy", "", &f.zeroCopy, "send what is written in pieces of more than 32 KiB "+
			"without copying it for the device, from 16 MiB more of locked memory; "+
			"docs/performance.md says what that saves"),
		opt("mtu", "BYTES", &f.mtu, "largest IP packet (default the port's, also when it "+
			"changes)"),
		opt("vlan", "N", &f.vlan, "802.1Q VLAN of the slice: receive its frames only, send with "+
			"its tag (default none)"),
		opt("dscp", "N", &f.dscp, "DSCP of sent packets, 0 to 63 (default 0). In a VLAN, N/8 is "+
			"the 802.1p priority"),
		opt("rate", "[PREFIX=]N", f.rates.add, "send at most N bytes per second by each TCP "+
			"connection that is accepted, headers included. With a prefix, "+
			"198.51.100.0/24=1000000, by those of its clients: the longest prefix counts. "+
			"Repeat the flag for more prefixes. 0: no limit"),
		opt("filter", "FILE", &f.filter, "judge packets by the list in FILE, which is written in "+
			"a part of the language of nft (docs/firewall.md): nftables does not see them. "+
			"\"rdma-netstack filter\" shows and changes it while the server runs"))
	f.log.addTo(cmd)
	addFlags(cmd, "Looking at the server",
		opt("admin", "ADDR:PORT", &f.admin, "also serve a status page for browsers (/), "+
			"/healthz, /readyz, /metrics (Prometheus) and, as JSON, /status, /stats, /errors, "+
			"/sockets and /info on an address of this machine, not of the slice. They are always "+
			"served on a unix socket of the user, where the commands status, ss and top "+
			"find them"),
		opt("admin-host", "NAME", &f.adminHosts, "a name by which others ask --admin, besides IP "+
			"addresses, localhost and this machine's name: requests for other names are refused "+
			"(421), so that a web page elsewhere cannot read it by a browser here. Repeat the "+
			"flag for more"))
	f.confined.addTo(cmd)
	addFlags(cmd, "Ending and upgrades",
		opt("drain", "TIME", &f.drain, "how long connections have to finish once SIGTERM or "+
			"SIGINT has come, or another process has taken over. No new ones begin meanwhile, and "+
			"/readyz of the admin endpoint answers 503. The rest is cut. A second signal ends at "+
			"once"),
		opt("take-over", "PID", &f.takeOver, "take the place of the server that runs as process "+
			"PID, with its MAC address, or of the only one there is, if any: auto. New clients "+
			"come to this process from its start-up line on; the other one finishes its "+
			"connections, for --drain at most, and ends. Both on one device's rings or over "+
			"packet sockets, with the same flags, as the same user. docs/upgrades.md",
			func() []string { return append(runningServers(cmd)(), takeOverAuto) }),
		opt("handover-to-kernel", "", &f.handOverToKernel, "with --address host: refuse no "+
			"client while --drain lasts after a signal. Linux accepts new ones, and this server "+
			"serves them from Linux's sockets, while connections over the device finish. Then "+
			"these have 5 s more"))
	f.sim.addTo(cmd, "With --device sim")
}

// Words that shells offer as values of flags.
var (
	addressWords = oneOf("dhcp", "dhcp6", "slaac", "auto", "host")
	backendWords = oneOf("auto", "rings", "packet", "xdp")
	netdevWord   = oneOf("netdev")
)

// addressSources holds the sources of addresses.
type addressSources struct {
	dynamic stack.Dynamic
	host    bool
}

// address parses one --address.
func (f *serveFlags) address(s string) error {
	sources := map[string]stack.Dynamic{"dhcp": stack.DHCPv4, "dhcp6": stack.DHCPv6,
		"slaac": stack.SLAAC, "auto": stack.Auto}
	if s == "host" {
		f.sources.host = true
	} else if d := sources[s]; d != 0 {
		f.sources.dynamic |= d
	} else {
		p, err := stack.ParseAddress(s)
		f.addresses = append(f.addresses, p)
		return err
	}
	return nil
}

// rates holds the values of --rate.
type rates struct {
	each  uint64 // bytes per second of each connection; 0: no limit
	rules []stack.PacingRule
}

// add parses one --rate.
func (r *rates) add(s string) error {
	prefix, number, ruled := strings.Cut(s, "=")
	if !ruled {
		number = s
	}
	n, err := strconv.ParseUint(number, 10, 64)
	if err == nil && ruled {
		var rule stack.PacingRule
		rule.Clients, err = netip.ParsePrefix(prefix)
		rule.BytesPerSecond = n
		r.rules = append(r.rules, rule)
	}
	if err != nil {
		return errors.New("want bytes per second, such as 1000000, for some clients behind " +
			"their prefix, 198.51.100.0/24=1000000")
	}
	if !ruled {
		r.each = n
	}
	return nil
}

// localPrefix parses one --local-prefix.
func (f *serveFlags) localPrefix(s string) error {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return errors.New("want the first address and the length, such as 198.51.100.0/24 or " +
			"2001:db8:1::/48")
	}
	f.whole = append(f.whole, p)
	return nil
}

// complete checks what can be checked without opening anything. listen is the default listen
// address.
func (f *serveFlags) complete(listen string, given func(flag string) bool) error {
	if len(f.listen) == 0 {
		f.listen = []string{listen}
	}
	if err := f.check(given); err != nil {
		return usageError{err}
	}
	return nil
}

func (f *serveFlags) check(given func(flag string) bool) error {
	if f.device == "" {
		return errors.New(
			"--device is missing: an RDMA device, the netdev of one, or sim (\"rdma-netstack " +
				"devices\" lists them)",
		)
	}
	if f.device == simDevice {
		if err := f.simAddresses(); err != nil {
			return err
		}
	}
	if err := f.checkHost(given); err != nil {
		return err
	}
	if onNetdev := f.backend == stack.BackendPacket || f.backend == stack.BackendXDP; onNetdev &&
		(f.netdevMAC || f.device == simDevice) {
		return fmt.Errorf("--backend %s is for an interface of this machine, and a MAC of our "+
			"own: leave out --mac netdev, or --backend", f.backend)
	}
	for _, name := range []string{"xdp-send", "xdp-copy"} {
		if given(name) && f.backend != stack.BackendXDP {
			return fmt.Errorf("--%s is for --backend xdp: add that, or leave it out", name)
		}
	}
	for _, name := range simFlagNames {
		if given(name) && f.device != simDevice {
			return fmt.Errorf("--%s is for --device sim only", name)
		}
	}
	if len(f.addresses) == 0 && f.sources == (addressSources{}) && !f.choosesSubnet() {
		return errors.New(
			"--address is missing: our address in the port's network, such as --address " +
				"192.0.2.10/24, or auto",
		)
	}
	for _, l := range f.listen {
		if _, _, err := net.SplitHostPort(l); err != nil {
			return fmt.Errorf("--listen %q: want ADDRESS:PORT or :PORT, such as :80", l)
		}
	}
	if err := errors.Join(f.checkAdmin(), f.checkEnding(given)); err != nil {
		return err
	}
	if f.choosesSubnet() { // the addresses are not known yet
		return stack.Config{NIC: f.nicConfig(), DSCP: f.dscp}.WithLocal(f.whole...).Validate()
	}
	return f.stackConfig(nil).Validate()
}

// checkHost refuses what the host decides.
func (f *serveFlags) checkHost(given func(flag string) bool) error {
	if !f.sources.host {
		return nil
	}
	if len(f.addresses) > 0 || f.sources != (addressSources{host: true}) {
		return errors.New("--address host takes all addresses of the interface: " +
			"leave out the other --address")
	}
	for _, name := range []string{"gateway", "mac", "vlan", "fallback", "local-prefix"} {
		if given(name) {
			return fmt.Errorf("--%s is for a slice with a MAC of its own: "+
				"leave it out with --address host", name)
		}
	}
	if f.device == simDevice {
		return errors.New("--address host is for an interface of this machine, and the software " +
			"NIC has none: name one that \"ip link\" lists as --device")
	}
	return nil
}

// simAddresses refuses an address without its prefix length where no interface has it, and a router
// in a subnet that is not chosen yet.
func (f *serveFlags) simAddresses() error {
	if f.choosesSubnet() && len(f.gateways) > 0 {
		return fmt.Errorf(
			"--gateway %s wants an --address in its subnet: without one a free subnet is chosen",
			f.gateways[0],
		)
	}
	if strings.HasPrefix(f.sim.netdev, "packet:") {
		return nil
	}
	for _, p := range f.addresses {
		if p.Bits() < 0 {
			bits := map[bool]int{true: 24, false: 64}[p.Addr().Is4()]
			return fmt.Errorf(
				"address %s has no prefix length; write the subnet's, for example %s/%d: the "+
					"software NIC's Linux side has none, unless it is --sim-netdev packet:IFNAME",
				p.Addr(),
				p.Addr(),
				bits,
			)
		}
	}
	return nil
}

// announce gives up what the server no longer needs, takes over from another server if it is to,
// and prints the one start-up line. A server that cannot print it ends.
func (f *serveFlags) announce(out streams, s *slice, what, try string) error {
	log := f.log.logger(out.stderr)
	if h, ok := s.stack.HostStats(); ok {
		warnOfRules(log, h, f.listen)
	}
	if err := f.confine(log); err != nil {
		return err
	}
	if err := s.takeOver(); err != nil {
		return err
	}
	if f.log.json {
		line := map[string]any{
			"serving": what, "addresses": s.addresses, "listen": f.listen,
			"mac": s.stack.HardwareAddr().String(), "device": s.about, "try": try,
		}
		if len(f.whole) > 0 {
			line["local_prefixes"] = f.whole
		}
		json.NewEncoder(out.stdout).Encode(line)
		return out.stdout.err()
	}
	fmt.Fprintf(out.stdout, "serving %s on %s; try: %s\n", what, s, try)
	return out.stdout.err()
}

// withBoundPort returns the listen address with the listener's actual port, because port 0 means
// any.
func withBoundPort(at string, l net.Addr) string {
	host, _, _ := net.SplitHostPort(at)
	_, port, _ := net.SplitHostPort(l.String())
	return net.JoinHostPort(host, port)
}

// reachable returns one of the slice's addresses that a user would try, IPv4 if there is one, with
// the listener's port.
func (f *serveFlags) reachable(s *slice) netip.AddrPort {
	best := netip.IPv6Unspecified()
	for _, p := range s.addresses {
		if !best.IsUnspecified() && !p.Addr().Is4() {
			continue
		}
		best = p.Addr()
		if best.Is4() {
			break
		}
	}
	host, port, _ := net.SplitHostPort(f.listen[0])
	if a, err := netip.ParseAddr(host); err == nil && !a.IsUnspecified() {
		best = a
	}
	number, _ := net.LookupPort("tcp", port)
	return netip.AddrPortFrom(best, uint16(number))
}

// url returns the base URL of a web server there.
func url(at netip.AddrPort) string {
	if at.Port() != 80 {
		return "http://" + at.String()
	}
	if at.Addr().Is6() {
		return "http://[" + at.Addr().String() + "]"
	}
	return "http://" + at.Addr().String()
}

// listenError explains why the slice does not listen.
func listenError(what, at string, err error) error {
	hint := ""
	switch {
	case errors.Is(err, unix.EADDRINUSE) && !strings.Contains(err.Error(), "another process"):
		hint = ": --listen names this port twice, choose another"
	case errors.Is(err, unix.EADDRNOTAVAIL):
		hint = ": not an address of the slice, see --address"
	}
	return fmt.Errorf("listen for %s on %s: %w%s", what, at, err, hint)
}

// queueCount holds the value of --queues: a number, or 0 for auto.
type queueCount int

const (
	maxQueueCount = 64
	// maxAutoQueues is enough for the load of 16 processors on receive workers alone.
	maxAutoQueues = 16
	autoQueues    = "auto"
)

// number returns how many queues it is here.
func (q queueCount) number() int {
	if q == 0 {
		return max(1, min(runtime.GOMAXPROCS(0)/2, maxAutoQueues))
	}
	return int(q)
}

// MarshalText implements encoding.TextMarshaler.
func (q queueCount) MarshalText() ([]byte, error) {
	if q == 0 {
		return []byte(autoQueues), nil
	}
	return strconv.AppendInt(nil, int64(q), 10), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (q *queueCount) UnmarshalText(text []byte) error {
	if string(text) == autoQueues {
		*q = 0
		return nil
	}
	n, err := strconv.Atoi(string(text))
	if err != nil || n < 1 || n > maxQueueCount {
		return errors.New("want 1 to 64, or auto")
	}
	*q = queueCount(n)
	return nil
}

// rulesTime says how long the programs that print the host's rules may take.
const rulesTime = 5 * time.Second

// warnOfRules says which rules of the host's packet filter and NAT do not go together with a server
// on the host's own address that listens on ADDRESS:PORT.
func warnOfRules(log *slog.Logger, h stack.HostStats, listen []string) {
	ports := firewall.Ports{Netdev: h.Netdev, First: h.FirstPort, Last: h.LastPort}
	for _, at := range listen {
		_, port, _ := net.SplitHostPort(at)
		if n, err := strconv.ParseUint(port, 10, 16); err == nil {
			ports.Listen = append(ports.Listen, uint16(n))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), rulesTime)
	defer cancel()
	lines, err := firewall.Conflicts(ctx, ports)
	for _, l := range lines {
		log.Warn(l)
	}
	if err != nil {
		log.Warn("rules of the packet filter were not read, and may conflict: root may read them",
			"error", err)
	}
}

// logFlags says how a server logs. The zero value means text, warnings and errors.
type logFlags struct {
	json  bool
	level *slog.Level // nil: info with json, else warn
}

func (f *logFlags) addTo(cmd *cobra.Command) {
	addFlags(cmd, "The log",
		opt("log-format", "text|json", func(s string) error {
			if f.json = s == "json"; !f.json && s != "text" {
				return errors.New("want text or json")
			}
			return nil
		}, "the start-up line (stdout) and the log (stderr), with json one object per line "+
			"(default text)"),
		opt("json-logs", "", &f.json, "--log-format json"),
		opt("log-level", "LEVEL", func(s string) error {
			f.level = new(slog.Level)
			if f.level.UnmarshalText([]byte(s)) != nil {
				return errors.New("want debug, info, warn or error")
			}
			return nil
		}, "debug, info, warn or error: the least that is logged (default warn, with json info). "+
			"Of lines with one message 10 are written per 10 s; left_out says how many were not",
			oneOf("debug", "info", "warn", "error")))
}

// logger writes to w.
func (f *logFlags) logger(w io.Writer) *slog.Logger {
	level := slog.LevelWarn
	switch {
	case f.level != nil:
		level = *f.level
	case f.json:
		level = slog.LevelInfo
	}
	options := &slog.HandlerOptions{Level: level}
	var to slog.Handler = slog.NewTextHandler(w, options)
	if f.json {
		to = slog.NewJSONHandler(w, options)
	}
	return slog.New(logs.Limit(to, time.Now))
}

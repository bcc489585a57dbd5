package resolver

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// recheck says how long a file is taken to be as it was when it was looked at last: package net's
// figure for resolv.conf, hosts and nsswitch.conf.
const recheck = 5 * time.Second

// dnsPort gives the port of DNS servers.
const dnsPort = "53"

// maxServers says how many servers of one resolv.conf are asked; resolv.conf(5) has the same limit.
const maxServers = 3

// dnsConfig holds what a resolv.conf says, as package net reads it.
type dnsConfig struct {
	servers       []string      // "address:port"
	search        []string      // absolute
	ndots         int           // a name with as many dots is tried as it is first
	timeout       time.Duration // of one server
	attempts      int           // how often each server is asked
	rotate        bool          // begin with another server each time
	singleRequest bool          // ask for A and AAAA one after the other
	useTCP        bool
	trustAD       bool // set the AD bit of queries (RFC 6840 section 5.7)
	noReload      bool
}

// newConfig returns what holds without a resolv.conf.
func newConfig() *dnsConfig {
	return &dnsConfig{ndots: 1, timeout: 5 * time.Second, attempts: 2}
}

// parse reads a resolv.conf. It ignores what it does not understand, as every stub resolver does.
func (c *dnsConfig) parse(text string) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") {
			continue
		}
		words := fields(line)
		if len(words) == 0 {
			continue
		}
		switch words[0] {
		case "nameserver":
			if len(words) > 1 && len(c.servers) < maxServers {
				if _, err := netip.ParseAddr(words[1]); err == nil {
					c.servers = append(c.servers, net.JoinHostPort(words[1], dnsPort))
				}
			}
		case "domain":
			if len(words) > 1 {
				c.search = []string{rooted(words[1])}
			}
		case "search":
			c.search = []string{}
			for _, domain := range words[1:] {
				if domain = rooted(domain); domain != "." {
					c.search = append(c.search, domain)
				}
			}
		case "options":
			for _, option := range words[1:] {
				c.set(option)
			}
		}
	}
}

// set takes one word of an "options" line.
func (c *dnsConfig) set(option string) {
	name, value, _ := strings.Cut(option, ":")
	n := number(value)
	switch {
	case !strings.Contains(option, ":"):
	case name == "ndots":
		c.ndots = min(n, 15)
	case name == "timeout":
		c.timeout = time.Duration(max(n, 1)) * time.Second
	case name == "attempts":
		c.attempts = max(n, 1)
	}
	switch option {
	case "rotate":
		c.rotate = true
	case "single-request", "single-request-reopen":
		c.singleRequest = true
	case "use-vc", "usevc", "tcp":
		c.useTCP = true
	case "trust-ad":
		c.trustAD = true
	case "no-reload":
		c.noReload = true
	}
}

// largest bounds a number of a resolv.conf.
const largest = 0xFFFFFF

// number returns the value of the digits that s begins with, 0 if it begins with none.
func number(s string) (n int) {
	for i := 0; i < len(s) && '0' <= s[i] && s[i] <= '9'; i++ {
		if n = n*10 + int(s[i]-'0'); n >= largest {
			return largest
		}
	}
	return n
}

// fields splits a line at what separates words in the machine's files.
func fields(line string) []string {
	return strings.FieldsFunc(line, func(c rune) bool { return strings.ContainsRune(" \t\r\n", c) })
}

func rooted(domain string) string {
	if strings.HasSuffix(domain, ".") {
		return domain
	}
	return domain + "."
}

// domainOf returns the search list that a machine of that name has by default: its domain.
func domainOf(hostname string) []string {
	if _, domain, ok := strings.Cut(hostname, "."); ok && domain != "" {
		return []string{rooted(domain)}
	}
	return nil
}

// with returns c with servers before and behind its own.
func (c *dnsConfig) with(first, last []netip.Addr) *dnsConfig {
	both := *c
	both.servers = nil
	for _, a := range first {
		both.servers = append(both.servers, net.JoinHostPort(a.String(), dnsPort))
	}
	both.servers = append(both.servers, c.servers...)
	for _, a := range last {
		if s := net.JoinHostPort(a.String(), dnsPort); !slices.Contains(both.servers, s) {
			both.servers = append(both.servers, s)
		}
	}
	return &both
}

// networks returns the networks to ask on.
func (c *dnsConfig) networks() []string {
	if c.useTCP {
		return []string{"tcp"}
	}
	return []string{"udp", "tcp"}
}

// longest gives the length of the longest domain name, with the dot at its end: 255 bytes on the
// wire.
const longest = 254

// nameList returns the absolute names that name may stand for, in the order to try.
func (c *dnsConfig) nameList(name string) (list []string) {
	add := func(absolute string) {
		if len(absolute) <= longest && !avoidDNS(absolute) {
			list = append(list, absolute)
		}
	}
	if strings.HasSuffix(name, ".") {
		add(name)
		return list
	}
	absolute := name + "."
	if len(absolute) > longest {
		return nil
	}
	enough := strings.Count(name, ".") >= c.ndots
	if enough {
		add(absolute)
	}
	for _, domain := range c.search {
		add(absolute + domain)
	}
	if !enough {
		add(absolute)
	}
	return list
}

// avoidDNS reports whether DNS must not be asked for a name: one below .onion (RFC 7686), or none.
func avoidDNS(name string) bool {
	name = strings.TrimSuffix(name, ".")
	const onion = ".onion"
	return name == "" || len(name) >= len(onion) &&
		strings.EqualFold(name[len(name)-len(onion):], onion)
}

// isDomainName reports whether s is a domain name of letters, digits, hyphens and underscores, with
// at least one that is no digit. Others, such as those in Unicode, are no names in DNS.
func isDomainName(s string) bool {
	if s == "." {
		return true
	}
	s = strings.TrimSuffix(s, ".")
	if len(s) >= longest {
		return false
	}
	name := false
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, b := range []byte(label) {
			switch l := lower(b); {
			case 'a' <= l && l <= 'z', b == '-', b == '_':
				name = true
			case b < '0' || b > '9':
				return false
			}
		}
	}
	return name
}

// resolvConf describes a configuration that follows its files.
type resolvConf struct {
	own     string   // or, if empty:
	machine []string // the first of these that names a server elsewhere

	checking    sync.Mutex  // held by the goroutine that looks at the files; guards the next two
	lastChecked time.Time   // when the files were looked at
	modified    []time.Time // when each was modified last, zero if it is missing

	dnsConfig atomic.Pointer[dnsConfig]
}

// init reads the files for the first time.
func (f *resolvConf) init(at clock.Clock) error {
	f.lastChecked, f.modified = at.Now(), f.times()
	conf, err := f.read()
	f.dnsConfig.Store(conf)
	return err
}

// update reads the files again if one has changed since it was read and they have not been looked
// at for a while. Other goroutines go on with what was read last. A file that cannot be read any
// longer leaves its last contents in force.
func (f *resolvConf) update(at clock.Clock) {
	if f.dnsConfig.Load().noReload || !f.checking.TryLock() {
		return
	}
	defer f.checking.Unlock()
	now := at.Now()
	if f.lastChecked.After(now.Add(-recheck)) {
		return
	}
	f.lastChecked = now
	times := f.times()
	if slices.EqualFunc(times, f.modified, time.Time.Equal) {
		return
	}
	conf, err := f.read()
	if err != nil || f.own == "" && len(conf.servers) == 0 && !slices.ContainsFunc(times,
		func(t time.Time) bool { return !t.IsZero() }) {
		return
	}
	f.modified = times
	f.dnsConfig.Store(conf)
}

func (f *resolvConf) files() []string {
	if f.own != "" {
		return []string{f.own}
	}
	return f.machine
}

func (f *resolvConf) times() (all []time.Time) {
	for _, path := range f.files() {
		at, _ := modification(path)
		all = append(all, at)
	}
	return all
}

// modification returns when a file was modified and its size, zero if it cannot be had.
func modification(path string) (time.Time, int64) {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}, 0
	}
	return info.ModTime(), info.Size()
}

// read reads the file of our own, or the first of the machine's that names a server we can reach,
// else the last of them that can be read.
func (f *resolvConf) read() (*dnsConfig, error) {
	if f.own != "" {
		return readConfig(f.own, os.Hostname)
	}
	found := newConfig()
	for _, path := range f.machine {
		conf, err := readConfig(path, os.Hostname)
		if err != nil {
			continue
		}
		found = conf
		found.servers = slices.DeleteFunc(found.servers, onLoopback)
		if len(found.servers) > 0 {
			break
		}
	}
	return found, nil
}

func onLoopback(server string) bool {
	at, err := netip.ParseAddrPort(server)
	return err != nil || at.Addr().Unmap().IsLoopback() || at.Addr().IsUnspecified()
}

// readConfig reads one file. A file without a search list has the machine's domain.
func readConfig(path string, hostname func() (string, error)) (*dnsConfig, error) {
	conf := newConfig()
	text, err := os.ReadFile(path)
	if err != nil {
		return conf, err
	}
	conf.parse(string(text))
	if len(conf.search) == 0 {
		if name, err := hostname(); err == nil {
			conf.search = domainOf(name)
		}
	}
	return conf, nil
}

package stack

import (
	"bufio"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// resolvConf is what resolv.conf(5) tells a stub resolver.
type resolvConf struct {
	servers  []netip.Addr
	search   []string
	ndots    int           // names with fewer dots are tried with the search domains first
	timeout  time.Duration // how long one server may take
	attempts int           // how often all servers are asked for one name
}

// The defaults and limits of resolv.conf(5).
const (
	defaultNdots      = 1
	maxNdots          = 15
	defaultDNSTimeout = 5 * time.Second
	maxDNSTimeout     = 30 * time.Second
	defaultAttempts   = 2
	maxAttempts       = 5
)

// hostResolvConf are the machine's files. The second is written by systemd-resolved if the first
// names its own server, on a loopback which is not ours.
var hostResolvConf = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}

// loadResolvConf puts cfg.DNS before what cfg.ResolvConf says. If it names no file the machine's is
// read for linux, which gets the servers in it.
func loadResolvConf(cfg Config, linux *netdevConfig) (resolvConf, error) {
	conf := resolvConf{ndots: defaultNdots, timeout: defaultDNSTimeout, attempts: defaultAttempts}
	switch {
	case cfg.ResolvConf != "":
		text, err := os.ReadFile(cfg.ResolvConf)
		if err != nil {
			return conf, fmt.Errorf("read resolvers: %w (set DNS instead, or correct ResolvConf)",
				err)
		}
		conf.parse(string(text))
	case linux != nil:
		conf = conf.firstUsable(hostResolvConf)
		linux.dns, conf.servers = conf.servers, nil
	}
	conf.servers = append(append([]netip.Addr(nil), cfg.DNS...), conf.servers...)
	return conf, nil
}

// firstUsable is what the first of files says, on top of c, that names a server we can reach; else
// what the last says.
func (c resolvConf) firstUsable(files []string) resolvConf {
	found := c
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		found = c
		found.parse(string(text))
		found.servers = slices.DeleteFunc(found.servers,
			func(a netip.Addr) bool { return a.IsLoopback() || a.IsUnspecified() })
		if len(found.servers) > 0 {
			break
		}
	}
	return found
}

// parse reads a resolv.conf. Lines it does not understand are ignored, as every stub resolver does.
func (c *resolvConf) parse(text string) {
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		line, _, _ := strings.Cut(lines.Text(), "#")
		line, _, _ = strings.Cut(line, ";")
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "nameserver":
			if a, err := netip.ParseAddr(words[1]); err == nil {
				c.servers = append(c.servers, a.Unmap())
			}
		case "domain", "search":
			c.search = words[1:]
		case "options":
			c.options(words[1:])
		}
	}
}

func (c *resolvConf) options(words []string) {
	for _, w := range words {
		name, value, _ := strings.Cut(w, ":")
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 {
			continue
		}
		switch name {
		case "ndots":
			c.ndots = min(n, maxNdots)
		case "timeout":
			c.timeout = min(max(time.Duration(n)*time.Second, time.Second), maxDNSTimeout)
		case "attempts":
			c.attempts = min(max(n, 1), maxAttempts)
		}
	}
}

// lookupLimit is how long a name may take that none of so many servers answers for.
func (c *resolvConf) lookupLimit(servers int) time.Duration {
	return c.timeout * time.Duration(c.attempts*max(servers, 1))
}

// candidates are the absolute names that a name may mean, in the order to try.
func (c *resolvConf) candidates(name string) []string {
	if strings.HasSuffix(name, ".") {
		return []string{name}
	}
	var list []string
	absolute := name + "."
	enough := strings.Count(name, ".") >= c.ndots
	if enough {
		list = append(list, absolute)
	}
	for _, domain := range c.search {
		if domain = strings.Trim(domain, "."); domain != "" {
			list = append(list, absolute+domain+".")
		}
	}
	if !enough {
		list = append(list, absolute)
	}
	return list
}

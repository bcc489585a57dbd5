package resolver

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// hostsFile is a hosts(5) file, read again when it changes.
type hostsFile struct {
	path string

	mu       sync.Mutex // guards what follows
	checked  time.Time
	modified time.Time
	size     int64
	byName   map[string][]netip.Addr // the key is lower-case, with a dot at its end
}

// addrs returns a name's addresses, in the order of the file.
func (h *hostsFile) addrs(at clock.Clock, name string) []netip.Addr {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.update(at.Now())
	return append([]netip.Addr(nil), h.byName[hostsKey(name)]...)
}

// hostsKey returns a name's key, as package net has it: a trailing dot does not matter, except to a
// name of one label, which is absolute with it.
func hostsKey(name string) string {
	name = strings.Map(func(c rune) rune {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		return c
	}, name)
	if strings.Contains(name, ".") {
		name = rooted(name)
	}
	return name
}

// update reads the file if it has changed, and was not looked at for a while or had no names.
func (h *hostsFile) update(now time.Time) {
	if now.Before(h.checked.Add(recheck)) && len(h.byName) > 0 {
		return
	}
	modified, size := modification(h.path)
	if h.byName != nil && modified.Equal(h.modified) && size == h.size {
		h.checked = now
		return
	}
	text, err := os.ReadFile(h.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
		return // what was read last stays in force
	}
	h.checked, h.modified, h.size = now, modified, size
	h.byName = parseHosts(string(text))
}

func parseHosts(text string) map[string][]netip.Addr {
	byName := map[string][]netip.Addr{}
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		words := fields(line)
		if len(words) < 2 {
			continue
		}
		addr, err := netip.ParseAddr(words[0])
		if err != nil {
			continue
		}
		for _, name := range words[1:] {
			key := hostsKey(name)
			byName[key] = append(byName[key], addr)
		}
	}
	return byName
}

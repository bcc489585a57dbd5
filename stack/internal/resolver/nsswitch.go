package resolver

import (
	"errors"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// lookupOrder says which of /etc/hosts and DNS are asked, and in which order.
type lookupOrder int

const (
	filesDNS lookupOrder = iota
	dnsFiles
	onlyFiles
	onlyDNS
)

func (o lookupOrder) String() string {
	return [...]string{"files,dns", "dns,files", "files", "dns"}[o]
}

// orderFile describes an nsswitch.conf(5), read again when it changes.
type orderFile struct {
	path string

	mu       sync.Mutex // guards what follows
	checked  time.Time  // zero: never
	modified time.Time
	order    lookupOrder
}

// of returns the order that the file gives for hosts; /etc/hosts first if it gives none.
func (f *orderFile) of(at clock.Clock) lookupOrder {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := at.Now()
	if !f.checked.IsZero() && f.checked.After(now.Add(-recheck)) {
		return f.order
	}
	modified, _ := modification(f.path)
	if !f.checked.IsZero() && modified.Equal(f.modified) {
		f.checked = now
		return f.order
	}
	f.checked, f.modified, f.order = now, modified, filesDNS
	if text, err := os.ReadFile(f.path); err == nil {
		if sources, err := hostsSources(string(text)); err == nil {
			f.order = orderOf(sources)
		}
	}
	return f.order
}

// orderOf reads the sources as package net's pure-Go resolver does: one that is neither "files" nor
// "dns" stands for DNS where "dns" is not among them.
func orderOf(sources []string) lookupOrder {
	known := false
	for _, s := range sources {
		known = known || s == "dns"
	}
	var files, dns, dnsFirst bool
	for _, s := range sources {
		switch {
		case s == "files":
			files = true
		case s == "dns" || !known:
			dnsFirst = dnsFirst || !files
			dns = true
		}
	}
	switch {
	case files && dns && dnsFirst:
		return dnsFiles
	case files && !dns:
		return onlyFiles
	case dns && !files:
		return onlyDNS
	}
	return filesDNS
}

// hostsSources returns the sources of the database "hosts", without the criteria in brackets. A
// file with an error in it has no effect at all.
func hostsSources(text string) (sources []string, err error) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.Trim(line, " \t\r\n"); line == "" {
			continue
		}
		database, rest, ok := strings.Cut(line, ":")
		if !ok {
			return nil, errors.New("no colon on line")
		}
		list, err := sourcesOf(rest)
		if err != nil {
			return nil, err
		}
		if strings.Trim(database, " \t") == "hosts" {
			sources = append(sources, list...)
		}
	}
	return sources, nil
}

// sourcesOf reads "files mdns4 [NOTFOUND=return] dns".
func sourcesOf(rest string) (list []string, err error) {
	for {
		rest = strings.Trim(rest, " \t\r\n")
		if rest == "" {
			return list, nil
		}
		var source string
		source, rest, _ = strings.Cut(rest, " ")
		list = append(list, source)
		rest = strings.Trim(rest, " \t\r\n")
		if !strings.HasPrefix(rest, "[") {
			continue
		}
		criteria, after, ok := strings.Cut(rest[1:], "]")
		if !ok {
			return nil, errors.New("unclosed criterion bracket")
		}
		for _, c := range fields(criteria) {
			if c = strings.TrimPrefix(c, "!"); len(c) < 3 || !strings.Contains(c, "=") {
				return nil, errors.New("invalid criteria: " + criteria)
			}
		}
		rest = after
	}
}

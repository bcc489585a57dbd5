package filter

import (
	"encoding/binary"
	"slices"
)

// decisions tells by its destination port what becomes of a TCP segment or a datagram, for each
// list of rules that sources reach: a row of 256 pages of 256 ports, most of which many rows share;
// see sources.rows. It does not change once made.
type decisions struct {
	pages []portPage
	all   []decision // the first: the rules are asked one by one
}

// portPage holds the outcomes of 256 ports in a row.
type portPage [1 << 8]outcome

// outcome holds the number of the rule that accepts, from 1, or 0 for the policy; with the bit
// dropped of the one that drops; or, with the bit asked, the number of a decision. refusedDatagram
// and refusedSegment, with the number of one of the first rules that drops, say that it does so
// whatever this host has sent: datagrams, or segments that begin connections.
type outcome uint16

const (
	refusedDatagram outcome = 1 << 13
	refusedSegment  outcome = refusedDatagram + firstHits
	dropped         outcome = 1 << 14
	asked           outcome = 1 << 15
)

// decision says what becomes of packets if it depends on more than the port, or if the rule's
// number is too high for an outcome.
type decision struct {
	// asks holds the flags of segments for which rules are to be asked one by one; datagrams go
	// by 0.
	asks    byteSet
	number  int32 // of the rule, from 1; 0: the policy
	verdict Verdict
}

const (
	pagesOfRow = 1 << 8
	// maxPages and maxRows bound the memory of decisions, 4 MiB, and 2 MiB for each family, and
	// maxPortLooks the time to make them, less than a second. Rules are asked one by one where it
	// is not enough.
	maxPages     = 1 << 13
	maxRows      = 1 << 12 * pagesOfRow
	maxPortLooks = 1 << 26
)

// decisionMaker makes decisions.
type decisionMaker struct {
	made   *decisions
	checks []check
	edges  [][]int   // of each check: ports at which it may begin to match or end to
	flags  []byteSet // of each check: flags of segments that it may match
	policy Verdict
	looks  int
	known  map[string][]uint16 // rows by kind and rules
	asking []uint16            // the row that asks for each port
	ids    map[decision]outcome
	whole  map[outcome]uint16  // pages with one outcome
	others map[portPage]uint16 // pages with several
}

func newDecisionMaker(into *decisions, checks []check, policy Verdict) *decisionMaker {
	m := &decisionMaker{made: into, checks: checks, policy: policy, known: map[string][]uint16{},
		ids: map[decision]outcome{}, whole: map[outcome]uint16{}, others: map[portPage]uint16{}}
	unknown := decision{asks: byteSet{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}}
	into.all = []decision{unknown}
	into.pages = make([]portPage, 1) // of which the first asks for each port
	for i := range into.pages[0] {
		into.pages[0][i] = asked
	}
	m.asking = make([]uint16, pagesOfRow)
	for i := range checks {
		m.edges = append(m.edges, checks[i].portEdges())
		m.flags = append(m.flags, checks[i].flagsMatched())
	}
	return m
}

// portEdges returns the destination ports at which a check begins to match or ends to.
func (c *check) portEdges() []int {
	if c.ports[1] != nil {
		return c.ports[1].edges()
	}
	return []int{int(c.first[1]), int(c.last[1]) + 1}
}

// flagsMatched returns the flags of segments that a check matches as far as flags go.
func (c *check) flagsMatched() (all byteSet) {
	for flags := range 1 << 8 {
		if c.flags == nil || uint8(flags)&c.flags.mask == c.flags.value {
			all.add(uint8(flags), uint8(flags))
		}
	}
	return all
}

// rowOf returns the row for packets of a kind, TCP or UDP, which reach so many rules: the numbers
// of its pages.
func (m *decisionMaker) rowOf(k kind, reached []uint32) []uint16 {
	key := []byte{byte(k)}
	for _, r := range reached {
		key = binary.LittleEndian.AppendUint32(key, r)
	}
	row, known := m.known[string(key)]
	if !known {
		row = m.makeRow(k, reached)
		m.known[string(key)] = row
	}
	return row
}

// makeRow makes a row.
func (m *decisionMaker) makeRow(k kind, reached []uint32) (row []uint16) {
	edges := append([]int{0, 1 << 16}, k.refusalEdges()...)
	for _, r := range reached {
		edges = append(edges, m.edges[r]...)
	}
	slices.Sort(edges)
	edges = slices.Compact(edges)
	looks := len(edges) * len(reached)
	if m.looks+looks > maxPortLooks {
		return m.asking
	}
	m.looks += looks
	var page portPage
	for i, from := range edges[:len(edges)-1] {
		o := m.outcomeOf(m.decideFor(reached, uint16(from)))
		if o >= dropped && o < dropped+firstHits {
			o = k.refusedBy(o&^dropped, uint16(from))
		}
		for to := edges[i+1]; from < to; {
			if from&0xff == 0 && to-from >= len(page) {
				row = append(row, m.wholePage(o))
				from += len(page)
				continue
			}
			page[from&0xff] = o
			if from++; from&0xff == 0 {
				row = append(row, m.otherPage(&page))
			}
		}
	}
	return row
}

// refusalEdges returns the ports at which the outcome of refusedBy begins or ends.
func (k kind) refusalEdges() []int {
	if k == kindTCP {
		return nil
	}
	return []int{dhcpServer4, dhcpClient4 + 1, dhcpClient6, dhcpServer6 + 1, firstDialPort}
}

// refusedBy returns the outcome for packets of a kind to a port that one of the first rules, or 0,
// the policy, drops.
func (k kind) refusedBy(rule outcome, port uint16) outcome {
	switch {
	case k == kindTCP:
		return refusedSegment | rule
	case port >= firstDialPort, rule == 0 && port >= dhcpServer4 && port <= dhcpClient4,
		rule == 0 && port >= dhcpClient6 && port <= dhcpServer6:
		return dropped | rule
	}
	return refusedDatagram | rule
}

// asDropped returns the outcome without what refusedBy tells.
func (o outcome) asDropped() outcome {
	if o >= refusedDatagram && o < refusedSegment+firstHits {
		return dropped | o&(firstHits-1)
	}
	return o
}

// decideFor returns what becomes of packets to a port.
func (m *decisionMaker) decideFor(reached []uint32, port uint16) decision {
	d := decision{verdict: m.policy}
	for _, r := range reached {
		c := &m.checks[r]
		switch {
		case !c.mayHavePort(port):
			continue
		case c.asksPortOnly():
			d.verdict, d.number = c.verdict, c.number
			return d
		}
		for i, word := range m.flags[r] {
			d.asks[i] |= word
		}
	}
	return d
}

// mayHavePort reports whether the check matches packets to a port, as far as the port goes.
func (c *check) mayHavePort(port uint16) bool {
	return port >= c.first[1] && port <= c.last[1] && (c.ports[1] == nil || c.ports[1].has(port))
}

// asksPortOnly reports whether a check of the protocol looks at nothing but the destination port.
func (c *check) asksPortOnly() bool {
	return c.needs&^(needPorts|needSets|needProto) == 0 && c.first[0] == 0 &&
		c.last[0] == 1<<16-1 && c.ports[0] == nil
}

// outcomeOf returns the outcome of a decision.
func (m *decisionMaker) outcomeOf(d decision) outcome {
	if d.asks == (byteSet{}) && d.number < int32(refusedDatagram) {
		if d.verdict == Drop {
			return outcome(d.number) | dropped
		}
		return outcome(d.number)
	}
	o, known := m.ids[d]
	if !known {
		o = asked // there is no room for more
		if len(m.made.all) < int(lastLooked-Looked(asked)) {
			o |= outcome(len(m.made.all))
			m.made.all = append(m.made.all, d)
		}
		m.ids[d] = o
	}
	return o
}

// wholePage returns the number of the page with one outcome; 0: there is no room for it.
func (m *decisionMaker) wholePage(o outcome) uint16 {
	n, known := m.whole[o]
	if !known {
		var page portPage
		for i := range page {
			page[i] = o
		}
		n = m.addPage(&page)
		m.whole[o] = n
	}
	return n
}

// otherPage returns the number of a page; 0: there is no room for it.
func (m *decisionMaker) otherPage(page *portPage) uint16 {
	n, known := m.others[*page]
	if !known {
		n = m.addPage(page)
		m.others[*page] = n
	}
	return n
}

func (m *decisionMaker) addPage(page *portPage) uint16 {
	if len(m.made.pages) == maxPages {
		return 0
	}
	m.made.pages = append(m.made.pages, *page)
	return uint16(len(m.made.pages) - 1)
}

package pcie

import "github.com/rdma-netstack/rdma-netstack/simnic"

// pipeline is an immutable snapshot of the flow tables, for classification without locks.
type pipeline struct {
	root   uint32
	tables map[uint32]stage
}

// stage is one table of a pipeline.
type stage struct {
	miss    uint32
	entries []*flowEntry
}

// A frame visits at most maxStages tables and goes to at most maxCopies places: tables
// lead only to tables of higher levels, but each entry may name many of them.
const maxStages, maxCopies = 256, 256

// publish makes the current flow tables the ones that classify frames.
func (f *Function) publish() {
	var macs [][6]byte
	for _, t := range f.objects.tables {
		for _, e := range t.entries {
			if mac, ok := e.unicast(); ok && t.kind == tableNICReceive {
				macs = append(macs, mac)
			}
		}
	}
	f.nic.SetLocalMACs(macs)
	f.nic.SetClassifier(f.objects.classifier(tableNICReceive))
	f.nic.SetSniffers(f.objects.classifier(tableSniffRx), f.objects.classifier(tableSniffTx))
}

// classifier is the pipeline of a kind of tables, nil if it has no root.
func (t *objectTable) classifier(k tableKind) simnic.Classifier {
	root, ok := t.roots[k]
	if !ok {
		return nil
	}
	p := &pipeline{root: root, tables: make(map[uint32]stage, len(t.tables))}
	for id, table := range t.tables {
		if table.kind == k {
			p.tables[id] = stage{miss: table.miss, entries: table.entries}
		}
	}
	return p.classify
}

// classify appends the destinations of a frame with this key. Every TIR gets its own copy.
func (p *pipeline) classify(k *simnic.MatchKey, out []simnic.Destination) []simnic.Destination {
	left := maxStages
	return p.walk(p.root, &left, k, out)
}

// walk follows a frame from one table on, through at most left tables.
func (p *pipeline) walk(id uint32, left *int, k *simnic.MatchKey,
	out []simnic.Destination) []simnic.Destination {
	for *left > 0 {
		*left--
		t, ok := p.tables[id]
		if !ok {
			return out
		}
		e := t.first(k)
		if e == nil {
			id = t.miss
			continue
		}
		for _, c := range e.counts {
			if len(out) < maxCopies {
				out = append(out, simnic.Destination{Count: c})
			}
		}
		if e.action&actionDrop != 0 && len(out) < maxCopies {
			return append(out, simnic.Destination{Drop: true})
		}
		if e.action&actionForward == 0 || e.action&actionDrop != 0 {
			return out
		}
		for _, tir := range e.tirs {
			if len(out) < maxCopies {
				out = append(out, simnic.Destination{TIR: tir, Tag: e.tag})
			}
		}
		for _, next := range e.tables {
			out = p.walk(next, left, k, out)
		}
		return out
	}
	return out
}

// first is the matching entry with the lowest index.
func (t *stage) first(k *simnic.MatchKey) *flowEntry {
	for _, e := range t.entries {
		if e.match.Takes(k) {
			return e
		}
	}
	return nil
}

// dmacWord is the word of a match key that holds the destination address, in its upper 48 bits.
const dmacWord, dmacShift = 1, 16

// unicast returns the destination address that the entry matches, if it matches exactly one.
func (e *flowEntry) unicast() (mac [6]byte, ok bool) {
	v := e.match.Value[dmacWord]
	for i := range mac {
		mac[i] = byte(v >> (56 - 8*i))
	}
	return mac, e.match.Mask[dmacWord]>>dmacShift == 1<<48-1 && mac[0]&1 == 0 &&
		e.action&actionForward != 0
}

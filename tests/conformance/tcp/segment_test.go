package tcp

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// segment is a TCP segment in the words of a script:
//
//	SA 0 ack 1 win 65535 mss 1460 sackok ts 0 1000 ws 7
//	PA 1+100 ack 1 sack 201-301
//
// The flags come first, by their initials (E and C for ECE and CWR) or as "-", then the sequence
// number and the length of the payload. All numbers are relative to the initial sequence number of
// whom they count, timestamps of ours to the first one of the connection.
type segment struct {
	flags    byte
	seq, ack uint32
	size     int // of the payload
	win      int // the field, not scaled; -1: not given
	urg      int
	mss, ws  int // -1: absent
	sackOK   bool
	stamp    stamp
	sack     [][2]uint32
	port     int // the peer's; 0: the usual one

	// Only in what the peer sends.
	renumber uint32 // the initial sequence number is this much higher from now on
	badSum   bool
	offset   int // data offset in words, if not 0
	cut      int // bytes missing at the end of the packet
	ect      byte
	// Only in what is expected.
	junk bool // the payload may be anything
	zero bool // the sequence number is 0 as it is
}

// stamp is a timestamp option.
type stamp struct {
	there       bool
	exact       bool // value and echo are given
	never       bool // must not be there although the connection has timestamps
	value, echo uint32
}

const (
	flagFIN = 1 << iota
	flagSYN
	flagRST
	flagPSH
	flagACK
	flagURG
)

const flagNames = "FSRPAUEC"

// parseSegment reads a segment. own is the MSS that "mss own" stands for.
func parseSegment(words []string, own int) (s segment, err error) {
	s = segment{win: -1, mss: -1, ws: -1}
	if len(words) < 2 {
		return s, fmt.Errorf("a segment has flags and a sequence number")
	}
	for _, c := range strings.Trim(words[0], "-") {
		bit := strings.IndexRune(flagNames, c)
		if bit < 0 {
			return s, fmt.Errorf("no flag %q", c)
		}
		s.flags |= 1 << bit
	}
	seq, size, _ := strings.Cut(words[1], "+")
	if s.seq, err = number(seq); err != nil {
		return s, err
	}
	if size != "" {
		if s.size, err = strconv.Atoi(size); err != nil {
			return s, err
		}
	}
	r := &reader{words: words[2:]}
	for r.more() {
		s.field(r, own)
	}
	return s, r.err
}

// number reads a sequence number, which may be negative.
func number(word string) (uint32, error) {
	n, err := strconv.ParseInt(word, 10, 64)
	return uint32(n), err
}

// reader takes words one by one.
type reader struct {
	words []string
	err   error
}

func (r *reader) more() bool { return r.err == nil && len(r.words) > 0 }

func (r *reader) next() string {
	if len(r.words) == 0 {
		r.err = fmt.Errorf("a value is missing at the end")
		return ""
	}
	w := r.words[0]
	r.words = r.words[1:]
	return w
}

func (r *reader) number() uint32 {
	n, err := number(r.next())
	if r.err == nil {
		r.err = err
	}
	return n
}

// numbers reports whether a number follows.
func (r *reader) numbers() bool {
	if len(r.words) == 0 {
		return false
	}
	_, err := number(r.words[0])
	return err == nil
}

// field reads one word and its values.
func (s *segment) field(r *reader, own int) {
	switch word := r.next(); word {
	case "ack":
		s.ack = r.number()
	case "win":
		s.win = int(r.number())
	case "urg":
		s.urg = int(r.number())
	case "mss":
		if s.mss = own; r.numbers() {
			s.mss = int(r.number())
		} else if w := r.next(); w != "own" {
			r.err = fmt.Errorf("mss %s", w)
		}
	case "sackok":
		s.sackOK = true
	case "ws":
		s.ws = int(r.number())
	case "ts":
		if s.stamp.there = true; r.numbers() {
			s.stamp.exact, s.stamp.value, s.stamp.echo = true, r.number(), r.number()
		}
	case "nots":
		s.stamp.never = true
	case "sack":
		for len(r.words) > 0 && strings.Contains(r.words[0], "-") {
			from, to, _ := strings.Cut(r.next(), "-")
			b := &reader{words: []string{from, to}}
			s.sack = append(s.sack, [2]uint32{b.number(), b.number()})
			r.err = b.err
		}
	case "port":
		s.port = int(r.number())
	case "renumber":
		s.renumber = r.number()
	case "badsum":
		s.badSum = true
	case "offset":
		s.offset = int(r.number())
	case "cut":
		s.cut = int(r.number())
	case "ect":
		s.ect = byte(r.number())
	case "junk":
		s.junk = true
	case "zero":
		s.zero = true
	default:
		r.err = fmt.Errorf("no field %q", word)
	}
}

// String is the segment as a script has it.
func (s segment) String() string {
	var b strings.Builder
	for i := range flagNames {
		if s.flags>>i&1 != 0 {
			b.WriteByte(flagNames[i])
		}
	}
	if s.flags == 0 {
		b.WriteByte('-')
	}
	fmt.Fprintf(&b, " %d", int32(s.seq))
	if s.size > 0 {
		fmt.Fprintf(&b, "+%d", s.size)
	}
	if s.flags&flagACK != 0 || s.ack != 0 {
		fmt.Fprintf(&b, " ack %d", int32(s.ack))
	}
	for _, f := range []struct {
		name  string
		value int
		there bool
	}{{"win", s.win, s.win >= 0}, {"urg", s.urg, s.urg != 0}, {"mss", s.mss, s.mss >= 0}} {
		if f.there {
			fmt.Fprintf(&b, " %s %d", f.name, f.value)
		}
	}
	if s.sackOK {
		b.WriteString(" sackok")
	}
	if s.stamp.there {
		b.WriteString(" ts")
		if s.stamp.exact {
			fmt.Fprintf(&b, " %d %d", s.stamp.value, s.stamp.echo)
		}
	}
	if s.ws >= 0 {
		fmt.Fprintf(&b, " ws %d", s.ws)
	}
	if s.sack != nil {
		b.WriteString(" sack")
	}
	for _, block := range s.sack {
		fmt.Fprintf(&b, " %d-%d", int32(block[0]), int32(block[1]))
	}
	if s.port != 0 {
		fmt.Fprintf(&b, " port %d", s.port)
	}
	return b.String()
}

// differs says in what a segment that came is not the one expected: in anything of its header but
// what the script leaves open, which are window, urgent pointer and the values of timestamps.
func (s *segment) differs(got *segment) (in []string) {
	for _, f := range []struct {
		name string
		ok   bool
	}{
		{"flags", s.flags == got.flags},
		{"sequence number", s.zero && got.zero || !s.zero && s.seq == got.seq},
		{"length", s.size == got.size},
		{"payload", s.junk || !got.junk},
		{"acknowledgement", s.ack == got.ack},
		{"window", s.win < 0 || s.win == got.win},
		{"urgent pointer", s.urg == got.urg},
		{"MSS", s.mss == got.mss},
		{"window scale", s.ws == got.ws},
		{"SACK permitted", s.sackOK == got.sackOK},
		{"SACK", slices.Equal(s.sack, got.sack)},
		{"timestamp", s.stamp.admits(got.stamp)},
		{"port", s.port == got.port},
	} {
		if !f.ok {
			in = append(in, f.name)
		}
	}
	return in
}

// admits compares timestamps. Whether there has to be one is a matter of the connection, but for
// the segments that negotiate it and those that say so.
func (t stamp) admits(got stamp) bool {
	switch {
	case t.never:
		return !got.there
	case t.exact:
		return got.there && t.value == got.value && t.echo == got.echo
	}
	return !t.there || got.there
}

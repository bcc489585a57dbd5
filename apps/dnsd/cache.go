package dnsd

import "encoding/binary"

// An answer from a zone depends only on the query's bytes without its ID and the case of its
// question. Each UDP worker keeps the packed answers of queries it has seen and copies them for
// later ones.

const (
	cacheKey   = 128     // longest query kept, bytes
	cacheBytes = 1 << 20 // keys and answers kept per worker; when it is full it is cleared
	entryCost  = 64      // memory of a map entry, about
)

// keyBuffer holds a key, and what lowerCase reads behind it.
type keyBuffer [cacheKey + 8]byte

// cache belongs to one goroutine.
type cache struct {
	answers map[string][]byte
	bytes   int
}

// keyOf writes the cache key of a query into buf, and returns it and the length of the question.
// The key is nil when such queries are not kept: unusual flags or counts need the full check, and
// EDNS options (cookies) differ each time.
func keyOf(query []byte, buf *keyBuffer) (key []byte, question int) {
	if len(query) < headerLen || len(query) > cacheKey {
		return nil, 0
	}
	n := questionLen(query)
	if n == 0 {
		return nil, 0
	}
	if rest := len(query) - headerLen - n; rest != 0 && rest != 11 {
		return nil, 0
	}
	key = buf[:copy(buf[:cacheKey], query[2:])]
	lowerCase(buf, headerLen-2, headerLen-2+n-4)
	return key, n
}

// lowerCase makes the name in wire form at b[from:to] lower case, eight bytes at a time. The
// lengths of labels are below 'A'.
func lowerCase(b *keyBuffer, from, to int) {
	const each, high = 0x0101010101010101, 0x8080808080808080
	for at := uint(from); at < uint(to) && at < cacheKey; at += 8 {
		x := binary.LittleEndian.Uint64(b[at : at+8])
		low := x &^ high
		upper := (low + (0x80-'A')*each) &^ (low + (0x7f-'Z')*each) &^ x & high
		if left := uint(to) - at; left < 8 {
			upper &= 1<<(8*left%64) - 1
		}
		binary.LittleEndian.PutUint64(b[at:at+8], x|upper>>2)
	}
}

// answerTo writes the answer to query, which has a question of that length, into out, or returns
// nil.
func (c *cache) answerTo(key, query []byte, question int, out []byte) []byte {
	kept := c.answers[string(key)]
	if kept == nil {
		return nil
	}
	out = out[:copy(out[:cap(out)], kept)]
	out[0], out[1] = query[0], query[1]
	copy(out[headerLen:], query[headerLen:headerLen+question])
	return out
}

func (c *cache) putAnswer(key, answer []byte) {
	cost := len(key) + len(answer) + entryCost
	if c.answers == nil || c.bytes+cost > cacheBytes {
		c.answers, c.bytes = map[string][]byte{}, 0
	}
	c.answers[string(key)] = append([]byte(nil), answer...)
	c.bytes += cost
}

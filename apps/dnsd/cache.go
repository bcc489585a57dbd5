package dnsd

// An answer from a zone depends only on the query's bytes without its ID and the case of its
// question. Each UDP worker keeps the packed answers of queries it has seen and copies them for
// later ones.

const (
	cacheKey   = 128     // longest query kept, bytes
	cacheBytes = 1 << 20 // keys and answers kept per worker; when it is full it is cleared
	entryCost  = 64      // memory of a map entry, about
)

// cache belongs to one goroutine.
type cache struct {
	answers map[string][]byte
	bytes   int
}

// keyOf writes the cache key of a query into buf; nil when such queries are not kept: unusual flags
// or counts need the full check, and EDNS options (cookies) differ each time.
func keyOf(query []byte, buf *[cacheKey]byte) []byte {
	if len(query) < headerLen || len(query) > cacheKey {
		return nil
	}
	n := questionLen(query)
	if n == 0 {
		return nil
	}
	if rest := len(query) - headerLen - n; rest != 0 && rest != 11 {
		return nil
	}
	key := buf[:copy(buf[:], query[2:])]
	for i := headerLen - 2; i < headerLen-2+n-4; i++ { // label lengths are below 'A'
		if c := key[i]; 'A' <= c && c <= 'Z' {
			key[i] = c + 'a' - 'A'
		}
	}
	return key
}

// answerTo writes the answer to query into out, or returns nil.
func (c *cache) answerTo(key, query, out []byte) []byte {
	kept := c.answers[string(key)]
	if kept == nil {
		return nil
	}
	out = out[:copy(out[:cap(out)], kept)]
	copy(out, query[:2])
	copy(out[headerLen:], query[headerLen:headerLen+questionLen(query)])
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

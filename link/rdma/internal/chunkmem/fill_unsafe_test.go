package chunkmem

import (
	"sync"
	"unsafe"
)

// fill has every pool's function New be a word.
func fill(pools []sync.Pool, word uintptr) {
	for i := range pools {
		*(*uintptr)(unsafe.Pointer(&pools[i].New)) = word
	}
}

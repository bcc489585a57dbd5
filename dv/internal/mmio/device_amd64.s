#include "textflag.h"

// func ToDevice()
TEXT ·ToDevice(SB), NOSPLIT, $0-0
	SFENCE
	RET

// func FromDevice()
TEXT ·FromDevice(SB), NOSPLIT, $0-0
	RET

// func FlushWC()
TEXT ·FlushWC(SB), NOSPLIT, $0-0
	SFENCE
	RET

// func store64(p unsafe.Pointer, v uint64)
TEXT ·store64(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ v+8(FP), BX
	MOVQ BX, (AX)
	RET

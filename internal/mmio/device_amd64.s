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

// func copyLines(dst, src unsafe.Pointer, n int)
TEXT ·copyLines(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
line:
	MOVQ 0(SI), AX
	MOVQ 8(SI), BX
	MOVQ 16(SI), DX
	MOVQ 24(SI), R8
	MOVQ AX, 0(DI)
	MOVQ BX, 8(DI)
	MOVQ DX, 16(DI)
	MOVQ R8, 24(DI)
	MOVQ 32(SI), AX
	MOVQ 40(SI), BX
	MOVQ 48(SI), DX
	MOVQ 56(SI), R8
	MOVQ AX, 32(DI)
	MOVQ BX, 40(DI)
	MOVQ DX, 48(DI)
	MOVQ R8, 56(DI)
	ADDQ $64, SI
	ADDQ $64, DI
	DECQ CX
	JNZ  line
	RET

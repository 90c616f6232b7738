//go:build !race

#include "textflag.h"

// How far ahead of its copy a line of dst is asked for: aheadBytes.
#define AHEAD 512

#define LINE \
	MOVOU (SI), X0    \
	MOVOU 16(SI), X1  \
	MOVOU 32(SI), X2  \
	MOVOU 48(SI), X3  \
	MOVOU X0, (DI)    \
	MOVOU X1, 16(DI)  \
	MOVOU X2, 32(DI)  \
	MOVOU X3, 48(DI)

#define WIDE \
	VMOVDQU (SI), Y0    \
	VMOVDQU 32(SI), Y1  \
	VMOVDQU Y0, (DI)    \
	VMOVDQU Y1, 32(DI)

// Copies CX lines by COPY, one at least, and asks for one further on with each, to write there: PREFETCHW AHEAD(DI).
#define LINES(COPY) \
line:                                            \
	BYTE $0x0f; BYTE $0x0d; BYTE $0x8f; LONG $AHEAD \
	COPY                                            \
	ADDQ $64, SI                                    \
	ADDQ $64, DI                                    \
	DECQ CX                                         \
	JNZ  line

// func ownLines(dst, src *byte, lines int)
TEXT ·ownLines(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ lines+16(FP), CX
	LINES(LINE)
	RET

// func ownWideLines(dst, src *byte, lines int)
TEXT ·ownWideLines(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ lines+16(FP), CX
	LINES(WIDE)
	VZEROUPPER
	RET

// func ownAhead(p *byte, lines int)
TEXT ·ownAhead(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), BX
	MOVQ lines+8(FP), CX

line:
	BYTE $0x0f; BYTE $0x0d; BYTE $0x0b // PREFETCHW (BX)
	ADDQ $64, BX
	DECQ CX
	JNZ  line
	RET

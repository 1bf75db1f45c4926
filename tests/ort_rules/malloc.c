/* Takes and gives back blocks as the file argv[1] says, and prints where glibc put them and where its heap ends.
   "a ID SIZE ALIGNMENT" takes one (alignment 0: malloc), "f ID" gives it back. Places are counted from the first chunk
   that this program takes; -1 is one that is not in the heap. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
enum { MOST = 1 << 16, HEAD = 16 };
static void *blocks[MOST];
static char in[1 << 16], out[1 << 22];
int main(int count, char **words) {
    FILE *file = count > 1 ? fopen(words[1], "r") : NULL;
    if (!file) return 1;
    setvbuf(file, in, _IOFBF, sizeof in);
    setvbuf(stdout, out, _IOFBF, sizeof out);
    char *first = (char *)malloc(24) - HEAD, kind;
    long id, size, alignment;
    printf("%ld %ld\n", (long)((size_t)first % 4096), (long)((char *)sbrk(0) - first));
    while (fscanf(file, " %c %ld", &kind, &id) == 2) {
        long place = 0;
        if (kind == 'a') {
            if (fscanf(file, "%ld %ld", &size, &alignment) != 2) return 1;
            if (!alignment) blocks[id] = malloc(size);
            else if (posix_memalign(&blocks[id], alignment, size)) return 1;
            place = (char *)blocks[id] - first;
            if (place < 0 || place >= (char *)sbrk(0) - first) place = -1;
        } else {
            free(blocks[id]);
        }
        printf("%ld %ld\n", place, (long)((char *)sbrk(0) - first));
    }
    return 0;
}

/*
 * The stand-in for libnvidia-ml.so.1 on every node of a lab: what it answers stands in the file ANSWERS/NODE, anew at
 * each call, in the words of fake_nvml.c. -DANSWERS='"/folder"'.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *of_node(const char *name) {
    static char text[4096];
    const char *node = getenv("SLURMD_NODENAME");
    if (strcmp(name, "FAKE_NVML")) return getenv(name);
    snprintf(text, sizeof text, ANSWERS "/%s", node ? node : "none");
    int file = open(text, O_RDONLY);
    ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    text[length < 0 ? 0 : length] = 0;
    return text;
}

#define getenv of_node
#include "fake_nvml.c"

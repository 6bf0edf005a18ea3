/* A site's plugin for the tests: three options of sbatch, and what the job finds of them in its environment.
 *
 * Declared here is what spank(8) says that sbatch and slurmstepd look for, so that no header of Slurm is needed.
 * VERSION is Slurm's own, (major << 16) + (minor << 8) + micro: others are not loaded.
 */

#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct spank_handle *spank_t;

struct spank_option {
    char *name;
    char *arginfo;
    char *usage;
    int has_arg; /* 0 no, 1 yes, 2 may */
    int value;
    int (*told)(int value, const char *argument, int on_the_node);
};

extern int spank_option_register(spank_t spank, struct spank_option *option);
extern int spank_setenv(spank_t spank, const char *name, const char *value, int overwrite);

const char plugin_name[] = "site";
const char plugin_type[] = "spank";
const unsigned int plugin_version = VERSION;

static char images[4096];
static char level[256] = "none";
static int traced;

static int image(int value, const char *argument, int on_the_node) {
    size_t used = strlen(images);
    snprintf(images + used, sizeof(images) - used, "<%s>", argument);
    return 0;
}

static int trace(int value, const char *argument, int on_the_node) {
    traced = 1;
    return 0;
}

static int set_level(int value, const char *argument, int on_the_node) {
    snprintf(level, sizeof(level), "%s", argument);
    return 0;
}

int slurm_spank_init(spank_t spank, int count, char **words) {
    static struct spank_option options[] = {
        {"site-image", "NAME[:TAG]", "the image of the job: its name and, where there are several of it, a tag", 1, 1, image},
        {"site-trace", NULL, "note what happens", 0, 2, trace},
        {"site-level", NULL, "takes an argument that its help does not show", 1, 3, set_level},
    };
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        spank_option_register(spank, &options[i]);
    return 0;
}

int slurm_spank_task_init(spank_t spank, int count, char **words) {
    spank_setenv(spank, "SITE_IMAGE", images, 1);
    spank_setenv(spank, "SITE_TRACE", traced ? "yes" : "no", 1);
    spank_setenv(spank, "SITE_LEVEL", level, 1);
    return 0;
}
